"""GELU of each element."""

from __future__ import annotations

from typing import get_args

from torch import Tensor

from ocrquant.kernels.contract import Contract
from ocrquant.kernels.gelu.native import gelu_native
from ocrquant.kernels.gelu.reference import Form, gelu_reference
from ocrquant.kernels.selection import use_native

__all__ = ["gelu"]


def gelu(x: Tensor, out: Tensor, form: Form) -> None:
    """See `gelu_reference`.

    Raises:
        ShapeError: An argument is not as the reference says.
    """
    contract = Contract("gelu")
    contract.require(form in get_args(Form), "form", " or ".join(get_args(Form)), form)
    contract.tensor("x", x, "R w", None, strided=True)
    contract.tensor("out", out, "R w", x.dtype, strided=True)
    run = gelu_native if use_native("gelu", x) else gelu_reference
    run(x, out, form)
