"""Convolution of the rows of a block with kernels that each row chose."""

from __future__ import annotations

from torch import Tensor

from ocrquant.kernels.contract import Contract
from ocrquant.kernels.local_convolution.native import local_convolution_native
from ocrquant.kernels.local_convolution.reference import local_convolution_reference
from ocrquant.kernels.selection import implementation

__all__ = ["local_convolution"]


def local_convolution(y: Tensor, base: Tensor, added: Tensor, block: int, side: int, out: Tensor) -> None:
    """See `local_convolution_reference`.

    Raises:
        ShapeError: An argument is not as the reference says.
    """
    contract = Contract("local_convolution")
    contract.tensor("y", y, "R w", None)
    contract.tensor("base", base, "sides taps w", y.dtype)
    contract.tensor("added", added, "R sides taps groups", y.dtype)
    contract.tensor("out", out, "R w", y.dtype)
    sizes = contract.sizes
    contract.require(0 <= side < sizes["sides"], "side", f"0 to {sizes['sides'] - 1}", side)
    contract.require(sizes["taps"] >= 1, "base", "at least one tap", sizes["taps"])
    groups = max(sizes["groups"], 1)
    contract.require(sizes["w"] % groups == 0, "added", f"a divisor of {sizes['w']} groups", groups)
    contract.require(block >= 1 and sizes["R"] % block == 0, "block", "whole blocks of rows", block)
    contract.require(out.data_ptr() != y.data_ptr() or not len(y), "out", "memory of its own", "that of y")
    run = implementation("local_convolution", y, local_convolution_native, local_convolution_reference)
    run(y, base, added, block, side, out)
