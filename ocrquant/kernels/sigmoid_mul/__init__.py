"""The output gate of attention, written as an operand."""

from __future__ import annotations

from torch import Tensor

from ocrquant.kernels.contract import Contract
from ocrquant.kernels.operand import Operand
from ocrquant.kernels.selection import implementation
from ocrquant.kernels.sigmoid_mul.native import sigmoid_mul_native
from ocrquant.kernels.sigmoid_mul.reference import sigmoid_mul_reference

__all__ = ["sigmoid_mul"]


def sigmoid_mul(x: Tensor, qg: Tensor, out: Operand) -> None:
    """See `sigmoid_mul_reference`.

    Raises:
        ShapeError: An argument is not as the reference says.
    """
    contract = Contract("sigmoid_mul")
    contract.tensor("x", x, "R w", None, strided=True)
    contract.tensor("qg", qg, "R heads 2hd", x.dtype, strided=True)
    _, heads, twice = qg.shape
    is_cut = twice % 2 == 0 and x.shape[1] == heads * (twice // 2)
    contract.require(is_cut, "x", f"width heads * hd = {heads} * {twice / 2:g}", x.shape[1])
    out.check(contract, dtype=x.dtype)
    run = implementation(
        "sigmoid_mul", x, sigmoid_mul_native, sigmoid_mul_reference, is_for_gpu=out.is_for_gpu
    )
    run(x, qg, out)
