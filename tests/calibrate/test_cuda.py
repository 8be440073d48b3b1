"""Both stages on a GPU: the same figures up to the noise of other kernels, the same bytes when repeated."""

import pytest
import torch

from ocrquant.adapters.model import load_model
from ocrquant.calibrate import collect_statistics, round_groups
from ocrquant.formats import Precision
from ocrquant.recipe.sections import WeightsSection
from tests.calibrate.making import INPUTS, SECTION

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(scope="module")
def cuda_document(tiny_model_folder):
    return load_model(tiny_model_folder, "cuda")


def both_stages(run, document, pages):
    statistics = collect_statistics(run, document, pages, SECTION, INPUTS)
    section = WeightsSection(num_held_back_pages=4)
    precisions = [Precision.FP8, Precision.NVFP4]
    return statistics, round_groups(run, document, pages, statistics, section, precisions, SECTION, INPUTS)


def test_agrees_with_the_cpu(document, cuda_document, pages, new_run):
    statistics, rounded = both_stages(new_run("cpu"), document, pages)
    on_gpu, rounded_on_gpu = both_stages(new_run("cuda"), cuda_document, pages)
    for here, there in zip(statistics.linears, on_gpu.linears, strict=True):
        assert (here.text.num_tokens, here.image.num_tokens) == (
            there.text.num_tokens,
            there.image.num_tokens,
        )
        assert there.amax == pytest.approx(here.amax, rel=0.1)
    for here, there in zip(rounded.groups, rounded_on_gpu.groups, strict=True):
        assert (here.group, here.precision) == (there.group, there.precision)
        assert there.error == pytest.approx(here.error, rel=0.25)


def test_repeat_gives_the_same_bytes(cuda_document, pages, new_run):
    runs = [new_run("first"), new_run("second")]
    for run in runs:
        both_stages(run, cuda_document, pages)
    for name in ("statistics.safetensors", "rounding.json", "rounding.safetensors"):
        assert (runs[0].path / name).read_bytes() == (runs[1].path / name).read_bytes()
