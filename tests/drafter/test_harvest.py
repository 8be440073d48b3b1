"""What a target leaves of its pages: features as transformers has them, answers as the engine gives them."""

import dataclasses
from pathlib import Path

import pytest
import torch

from ocrquant.adapters import load_model, model_folder
from ocrquant.drafter.harvest import harvest
from ocrquant.drafter.target import read_ends
from ocrquant.engine.loading import RuntimeSettings, load_runtime
from ocrquant.engine.preparing import PageTask
from ocrquant.engine.transcriber import Transcriber
from ocrquant.errors import ModelError
from ocrquant.pages import load_pages

CROPS = Path(__file__).parents[2] / "calibration_data"
TAPS = (1, 3, 7)
SETTINGS = RuntimeSettings(max_requests=3, max_length=512, dtype="fp32")


def pages(count):
    found = [page for page in load_pages(CROPS) if page.kind == "line"][:count]
    return [PageTask(page.id, page.image, page.kind) for page in found]


@pytest.fixture(scope="module")
def harvested():
    runtime = load_runtime(model_folder("pico"), SETTINGS)
    return {s.page: s for s in harvest(runtime, pages(4), TAPS, max_tokens=200)}


def test_features_are_the_hidden_states_of_transformers(harvested):
    document = load_model("pico", dtype=torch.float32)
    records = {page.id: page for page in load_pages(CROPS)}
    from ocrquant.adapters import PageInput
    from ocrquant.pages import page_image

    for name, found in harvested.items():
        text = document.tokenizer.decode(found.tokens[found.answer_start :], skip_special_tokens=True)
        encoded = document.encode([PageInput(page_image(records[name]), "line", text, name)])
        assert encoded.input_ids[0].tolist() == found.tokens.tolist()
        with torch.no_grad():
            states = document.model(**encoded.forward_inputs(), output_hidden_states=True).hidden_states
        # The last entry of transformers lies behind the final norm, so that the last layer is compared by it.
        expected = [states[tap + 1][0, :-1] for tap in TAPS]
        given = found.features.unflatten(1, (len(TAPS), -1)).unbind(1)
        norm = document.module(f"{document.map.block_prefix.rpartition('.')[0]}.norm")
        given = [*given[:-1], norm(given[-1]).detach()]
        for one, other in zip(given, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=2e-3, atol=2e-3 * float(other.abs().max()))


def test_answers_are_those_of_the_engine(harvested):
    runtime = load_runtime(
        model_folder("pico"), RuntimeSettings(max_requests=3, max_length=512, dtype="fp32")
    )
    with Transcriber(runtime, workers=0) as transcriber:
        for result in transcriber.read(pages(4)):
            assert result.answer is not None
            found = harvested[result.page.id]
            assert found.tokens[found.answer_start : -1].tolist() == list(result.answer.ids)
            assert int(found.tokens[-1]) in runtime.processor.eos_ids


def test_pages_that_cannot_be_read_are_left_out():
    runtime = load_runtime(model_folder("pico"), RuntimeSettings(max_requests=2, max_length=512))
    tasks = [dataclasses.replace(pages(1)[0], id="good"), PageTask("bad", b"no image", "line")]
    assert [found.page for found in harvest(runtime, tasks, (0,), max_tokens=8)] in ([], ["good"])
    with pytest.raises(ModelError, match="layers to tap"):
        list(harvest(load_runtime(model_folder("pico")), tasks, (3, 8), max_tokens=8))


def test_a_plan_has_the_digest_of_its_model(tmp_path):
    ends = read_ends(model_folder("pico"))
    assert ends.embedding.shape == ends.head.shape == (320, 192)
    assert ends.num_layers == 8
    assert len(ends.sha256) == 64
