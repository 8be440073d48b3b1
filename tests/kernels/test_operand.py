import pytest
import torch

from ocrquant.errors import ShapeError
from ocrquant.kernels.contract import Contract
from ocrquant.kernels.operand import Operand, OperandSpec

SCALE = torch.ones(1)
EVERY = OperandSpec(plain=True, fp8=True, nvfp4_encode_scale=SCALE)
CPU = torch.device("cpu")


def test_allocates_the_forms_that_are_asked_for():
    operand = EVERY.allocate(3, 32, torch.bfloat16, CPU)
    shapes = [operand.plain, operand.fp8, operand.fp8_scale, operand.nvfp4, operand.nvfp4_scale]
    assert [list(t.shape) for t in shapes] == [[3, 32], [3, 32], [3], [3, 16], [3, 2]]
    assert operand.encode_scale is SCALE
    contract = Contract("op", R=3, w=32)
    operand.check(contract)
    plain = OperandSpec(plain=True).allocate(3, 30, torch.bfloat16, CPU)
    assert plain.fp8 is None
    assert plain.nvfp4 is None


def test_rows_are_views():
    operand = EVERY.allocate(3, 32, torch.bfloat16, CPU)
    part = operand.rows(2)
    part.check(Contract("op", R=2, w=32))
    assert part.plain.data_ptr() == operand.plain.data_ptr()
    assert part.encode_scale is SCALE


def test_a_width_that_nvfp4_cannot_hold_is_refused():
    with pytest.raises(ShapeError, match="a multiple of 16, got 24"):
        OperandSpec(nvfp4_encode_scale=SCALE).allocate(1, 24, torch.bfloat16, CPU)


@pytest.mark.parametrize(
    ("operand", "message"),
    [
        (Operand(), "at least one form"),
        (Operand(fp8=torch.zeros(2, 32, dtype=torch.uint8)), "fp8_scale"),
        (Operand(nvfp4=torch.zeros(2, 16, dtype=torch.uint8)), "nvfp4_scale and encode_scale"),
        (Operand(plain=torch.zeros(2, 31)), r"with w = 32"),
        (
            Operand(
                nvfp4=torch.zeros(2, 16, dtype=torch.uint8),
                nvfp4_scale=torch.zeros(2, 3, dtype=torch.uint8),
                encode_scale=SCALE,
            ),
            "16 and 3 columns",
        ),
    ],
)
def test_incomplete_operands_are_refused(operand, message):
    with pytest.raises(ShapeError, match=message):
        operand.check(Contract("op", R=2, w=32))
