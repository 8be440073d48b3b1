"""Rows into every form of an operand."""

from __future__ import annotations

from torch import Tensor

from ocrquant.kernels.contract import Contract
from ocrquant.kernels.operand import Operand
from ocrquant.kernels.quantize.native import quantize_native
from ocrquant.kernels.quantize.reference import quantize_reference
from ocrquant.kernels.selection import implementation

__all__ = ["quantize"]


def quantize(x: Tensor, out: Operand) -> None:
    """See `quantize_reference`.

    Raises:
        ShapeError: An argument is not as the reference says.
    """
    contract = Contract("quantize")
    contract.tensor("x", x, "R w", None, strided=True)
    out.check(contract, dtype=x.dtype)
    run = implementation("quantize", x, quantize_native, quantize_reference, is_for_gpu=out.is_for_gpu)
    run(x, out)
