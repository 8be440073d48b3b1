"""The serving benchmark on the tiny model, and that its arms read the same."""

import pytest

from ocrquant.bench.pages import heldout_pages
from ocrquant.bench.serving_arms import EngineArm, TransformersArm
from ocrquant.engine.loading import RuntimeSettings, load_runtime
from tests.bench.running import is_estimate, result_of


def test_every_arm_has_its_numbers(capsys, tiny_model_folder):
    small = (
        "crops=4",
        "at_once=[1, 2]",
        "slice_at_one=2",
        "max_tokens=3",
        "probe_bytes=65536",
        f"model={tiny_model_folder}",
    )
    data = result_of(capsys, "serving", *small, f"checkpoint={tiny_model_folder}")
    assert data["repeats"] == 2
    assert data["repeats_note"] == "too few: 2 of at least 12"
    arms = ["transformers bf16", "transformers fp32", "engine bf16", "engine checkpoint"]
    for at_once in (1, 2):
        found = data["results"][f"{at_once} at once"]
        assert found["crops_per_repeat"] == 2
        assert found["faster_baseline"] in arms[:2]
        assert is_estimate(found["read_bytes_per_s"])
        for arm in arms:
            for key in ("tokens_per_s", "first_token_s", "last_first_token_s"):
                assert is_estimate(found[arm][key])
            assert 4 <= found[arm]["num_tokens"] <= 12
        for arm in arms[2:]:
            for base in arms[:2]:
                assert is_estimate(found[arm][f"tokens_per_s over {base}"])
                assert is_estimate(found[arm][f"first token sooner than {base}"])
            assert found[arm]["ceiling_tokens_per_s"] > 0
    # Speed at one, first token at one and two; there is no promise for the speed of two.
    assert len(data["goals"]) == 2 * 3
    assert abs(data["results"]["memory"]["engine bf16"]["weights_over_stored"]) < 0.1


@pytest.mark.slow
def test_arms_read_the_same():
    pages = heldout_pages(4)
    import torch

    from ocrquant.adapters import model_folder

    folder = model_folder("pico")
    theirs = TransformersArm(folder, torch.float32, 12)(pages, 2)
    ours = EngineArm(load_runtime(folder, RuntimeSettings(max_requests=2, dtype="fp32")), 12)(pages, 2)
    assert ours.texts == theirs.texts
    assert ours.ids == theirs.ids
    assert ours.num_tokens == theirs.num_tokens
    assert all(seconds > 0 for one in (ours, theirs) for seconds in one.first_token_s)
