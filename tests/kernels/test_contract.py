import pytest
import torch

from ocrquant.errors import ShapeError
from ocrquant.kernels.contract import Contract


def test_binds_symbols_at_their_first_use():
    contract = Contract("op")
    contract.tensor("x", torch.zeros(2, 3), "R w", torch.float32)
    contract.tensor("y", torch.zeros(3), "w", None)
    assert contract.sizes == {"R": 2, "w": 3}


@pytest.mark.parametrize(
    ("tensor", "shape", "dtype", "message"),
    [
        (torch.zeros(2, 4), "R w", None, r"with w = 3, got \[2, 4\]"),
        (torch.zeros(2), "R w", None, r"expected shape \[R, w\], got \[2\]"),
        (torch.zeros(2, 4), "R 5", None, r"expected shape \[R, 5\], got \[2, 4\]"),
        (torch.zeros(2, 3), "R w", torch.int32, r"expected torch.int32, got torch.float32"),
        (torch.zeros(2, 3), "R w", (torch.int32, torch.uint8), r"expected torch.int32 or torch.uint8"),
        (torch.zeros(3, 2).t(), "R w", None, r"expected a contiguous tensor, got strides \[1, 2\]"),
        (torch.zeros(2, 3, device="meta"), "R w", None, r"expected device cpu, got meta"),
    ],
)
def test_refusals_name_op_argument_expected_and_given(tensor, shape, dtype, message):
    contract = Contract("op")
    contract.tensor("x", torch.zeros(2, 3), "R w", None)
    with pytest.raises(ShapeError, match=f"op op: y: .*{message}"):
        contract.tensor("y", tensor, shape, dtype)


def test_strided_rows_need_a_dense_last_dimension():
    contract = Contract("op")
    contract.tensor("x", torch.zeros(4, 6)[:, :3], "R w", None, strided=True)
    with pytest.raises(ShapeError, match="a dense last dimension"):
        Contract("op").tensor("x", torch.zeros(6, 4).t(), "R w", None, strided=True)


def test_require():
    Contract("op").require(True, "x", "anything", 1)
    with pytest.raises(ShapeError, match="op op: x: expected a tensor, got 1"):
        Contract("op").require(False, "x", "a tensor", 1)
