"""Which linears of a GPU go to the table of products."""

import pytest
import torch

from ocrquant.formats.scale_layout import swizzle
from ocrquant.kernels import linear as package
from ocrquant.kernels.linear.reference import linear_reference
from ocrquant.kernels.matmul import library
from ocrquant.kernels.matmul.table import Rule
from ocrquant.kernels.operand import Operand
from ocrquant.kernels.selection import choices, count_launches
from tests.kernels.linear.operands import make_operand, make_rows, make_weight

BF16 = torch.bfloat16


class Out:
    """A result on a GPU, as far as the choice looks at it."""

    def __init__(self, dtype, device="cuda"):
        self.dtype, self.device = dtype, torch.device(device)


@pytest.mark.parametrize(
    ("plain", "out", "kernels", "goes"),
    [
        (BF16, Out(BF16), "", True),
        (None, Out(torch.float32), "", True),
        (BF16, Out(BF16), "triton", True),
        (BF16, Out(BF16, "cpu"), "", False),
        (torch.float32, Out(torch.float32), "", False),
        (BF16, Out(torch.float64), "", False),
        (BF16, Out(BF16), "reference", False),
        (BF16, Out(BF16), "native", False),
    ],
)
def test_libraries_take_bf16_on_a_gpu_unless_another_is_asked_for(monkeypatch, plain, out, kernels, goes):
    monkeypatch.setenv("OCRQUANT_KERNELS", kernels)
    rows = None if plain is None else torch.zeros(1, dtype=plain)
    assert package._is_for_libraries(rows, out) is goes


def test_a_product_by_a_library_is_counted_and_named(monkeypatch):
    rule = Rule(form="bf16 x bf16", implementation="mm", reason="for the test")
    called = []
    monkeypatch.setattr(package, "_is_for_libraries", lambda *arguments: True)
    monkeypatch.setattr(library, "linear_gpu", lambda *arguments: (called.append(arguments), rule)[1])
    weight = package.pack(make_weight(package.Precision.BF16, 16, 32), for_gpu=True)
    with count_launches() as counted:
        package.linear(
            make_operand(make_rows(2, 32), weight.precision, False), weight, torch.empty(2, 16).bfloat16()
        )
    assert counted == {"linear": 1}
    assert len(called) == 1
    assert (choices()["linear"].implementation, choices()["linear"].reason) == ("mm", "for the test")


@pytest.mark.parametrize("form", ["swizzled", "static"])
def test_forms_that_only_gpus_read_run_the_definition_on_a_cpu(form):
    """The native product reads scales by token or row by row; others never reach it."""
    precision = package.Precision.NVFP4 if form == "swizzled" else package.Precision.FP8
    weight = package.pack(make_weight(precision, 16, 64))
    x = make_operand(make_rows(3, 64), precision, True)
    expected, found = (torch.empty(3, 16, dtype=BF16) for _ in range(2))
    if form == "swizzled":
        other = Operand(nvfp4=x.nvfp4, nvfp4_swizzled=swizzle(x.nvfp4_scale), encode_scale=x.encode_scale)
    else:
        x = Operand(fp8=x.fp8, fp8_scale=torch.full((3,), 0.5))
        other = Operand(fp8=x.fp8, fp8_static=torch.tensor([0.5]))
    linear_reference(x, weight, expected)
    package.linear(other, weight, found)
    assert torch.equal(found, expected)
    assert choices()["linear"].implementation == "reference"
