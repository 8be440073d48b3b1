"""The stage on a GPU: the same figures up to the noise of other kernels, the same bytes when repeated."""

import shutil

import pytest
import torch

from ocrquant.adapters.model import load_model
from ocrquant.artifacts import Rounding, RunFolder, Sensitivity
from ocrquant.assign.grid import grid_plans
from ocrquant.formats import Precision
from ocrquant.recipe.sections import SearchSection, SensitivitySection
from ocrquant.sensitivity import measure_sensitivity

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SECTION = SensitivitySection(score="both", candidates=[Precision.FP8, Precision.NVFP4], batch_size=3)


@pytest.fixture
def score(tmp_path, rounded_run, pages):
    def run_stage(name, document):
        path = tmp_path / name
        if not path.exists():
            shutil.copytree(rounded_run[0], path, ignore=shutil.ignore_patterns(".lock", ".partial"))
        with RunFolder.open(path, recipe_digest="0" * 64, recipe_text="{}") as run:
            rounding = run.load(Rounding)
            found = measure_sensitivity(
                run, document, pages, rounding, SECTION, SearchSection(), {}, grid_plans
            )
        return found, (path / Sensitivity.FILE_NAME).read_bytes()

    return run_stage


def test_agrees_with_the_cpu(score, document, tiny_model_folder):
    on_gpu = load_model(tiny_model_folder, "cuda")
    here, _ = score("cpu", document)
    there, once = score("cuda", on_gpu)
    for left, right in zip(here.rows, there.rows, strict=True):
        assert (left.group, left.precision, left.score) == (right.group, right.precision, right.score)
        # The rounding of activations turns on the last bit of what comes before.
        assert right.mean == pytest.approx(left.mean, rel=0.2)
    assert score("cuda", on_gpu)[1] == once
