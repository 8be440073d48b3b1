"""Peak memory of a run is what `ocrquant check` says beforehand."""

import pytest
import torch
from safetensors import safe_open

from ocrquant.bench.large_model import SHAPES, make_folder
from ocrquant.bench.memory import Settings, run
from ocrquant.errors import OutputError


@pytest.mark.parametrize("residency", ["whole", "block"])
def test_the_peak_of_a_small_model_is_foreseen(tmp_path, residency):
    report = run(Settings(shape="small", scratch=tmp_path, residency=residency), 1)
    assert 0.9 <= report.results["measured_over_foreseen"] <= 1.1
    assert {goal.as_json()["verdict"] for goal in report.goals} == {"reached"}
    assert list(report.results["seconds_by_stage"]) == ["pages", "statistics", "rounding", "sensitivity"]
    assert list(tmp_path.iterdir()) == []


def test_a_made_folder_holds_every_tensor_once(tmp_path):
    make_folder(tmp_path / "model", "small")
    text, _ = SHAPES["small"]
    with safe_open(tmp_path / "model" / "model.safetensors", framework="pt") as file:
        names = set(file.keys())
        table = file.get_tensor("model.language_model.embed_tokens.weight")
    assert "lm_head.weight" not in names
    assert table.shape == (text["vocab_size"], text["hidden_size"])
    assert table.dtype == torch.bfloat16
    assert float(table.float().std()) == pytest.approx(0.02, rel=0.05)


def test_a_scratch_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(OutputError, match="scratch: expected a folder"):
        run(Settings(shape="small", scratch=tmp_path / "none"), 1)
