"""Values of 8-bit pixels."""

from __future__ import annotations

import torch
from torch import Tensor

from ocrquant.kernels.contract import Contract
from ocrquant.kernels.pixel_values.native import pixel_values_native
from ocrquant.kernels.pixel_values.reference import pixel_values_reference
from ocrquant.kernels.selection import use_native

__all__ = ["pixel_values"]


def pixel_values(codes: Tensor, levels: Tensor, out: Tensor) -> None:
    """See `pixel_values_reference`.

    Raises:
        ShapeError: An argument is not as the reference says.
    """
    contract = Contract("pixel_values")
    contract.tensor("codes", codes, "R c p", torch.uint8)
    contract.tensor("levels", levels, "c 256", None)
    contract.tensor("out", out, "R c f p", levels.dtype)
    run = pixel_values_native if use_native("pixel_values", out) else pixel_values_reference
    run(codes, levels, out)
