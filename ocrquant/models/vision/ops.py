"""Ops of the towers in plain torch, with the signatures of the kernels that take their place."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor


def wide(x: Tensor) -> Tensor:
    """``x`` in the dtype that ops compute in."""
    return x if x.dtype == torch.float64 else x.float()


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float, out: Tensor) -> None:
    """Rows normalized, float32 inside, one rounding."""
    values = wide(x)
    out.copy_(F.layer_norm(values, weight.shape, weight.to(values.dtype), bias.to(values.dtype), eps))


def gelu(x: Tensor, out: Tensor, form: Literal["tanh", "erf"]) -> None:
    """GELU of each element, float32 inside, one rounding."""
    out.copy_(F.gelu(wide(x), approximate="tanh" if form == "tanh" else "none"))
