"""The sum of two tensors in the activation dtype."""

from __future__ import annotations

from torch import Tensor

from ocrquant.kernels.add.native import add_native
from ocrquant.kernels.add.reference import add_reference
from ocrquant.kernels.contract import Contract
from ocrquant.kernels.selection import use_native

__all__ = ["add"]


def add(a: Tensor, b: Tensor, out: Tensor) -> None:
    """See `add_reference`.

    Raises:
        ShapeError: An argument is not as the reference says.
    """
    contract = Contract("add")
    contract.tensor("a", a, "R w", None)
    contract.tensor("b", b, "R w", a.dtype)
    contract.tensor("out", out, "R w", a.dtype, strided=True)
    (add_native if use_native("add", a) else add_reference)(a, b, out)
