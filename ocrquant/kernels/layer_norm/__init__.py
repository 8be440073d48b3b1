"""Layer norm of rows."""

from __future__ import annotations

import torch
from torch import Tensor

from ocrquant.kernels.contract import Contract
from ocrquant.kernels.layer_norm.native import layer_norm_native
from ocrquant.kernels.layer_norm.reference import layer_norm_reference
from ocrquant.kernels.selection import use_native

__all__ = ["layer_norm"]


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float, out: Tensor) -> None:
    """See `layer_norm_reference`.

    Raises:
        ShapeError: An argument is not as the reference says.
    """
    contract = Contract("layer_norm")
    contract.tensor("x", x, "R w", None, strided=True)
    contract.tensor("weight", weight, "w", torch.float32)
    contract.tensor("bias", bias, "w", torch.float32)
    contract.tensor("out", out, "R w", x.dtype, strided=True)
    run = layer_norm_native if use_native("layer_norm", x) else layer_norm_reference
    run(x, weight, bias, eps, out)
