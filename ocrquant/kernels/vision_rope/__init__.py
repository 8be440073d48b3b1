"""Rotary embedding of the vision towers, in place."""

from __future__ import annotations

import torch
from torch import Tensor

from ocrquant.kernels.contract import Contract
from ocrquant.kernels.selection import use_native
from ocrquant.kernels.vision_rope.native import vision_rope_native
from ocrquant.kernels.vision_rope.reference import vision_rope_reference

__all__ = ["vision_rope"]


def vision_rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> None:
    """See `vision_rope_reference`.

    Raises:
        ShapeError: An argument is not as the reference says.
    """
    contract = Contract("vision_rope")
    contract.tensor("q", q, "R n hd", None, strided=True)
    contract.tensor("k", k, "R n hd", q.dtype, strided=True)
    contract.tensor("cos", cos, "R half", torch.float32)
    contract.tensor("sin", sin, "R half", torch.float32)
    contract.require(2 * cos.shape[1] == q.shape[2], "cos", f"width {q.shape[2]} / 2", cos.shape[1])
    (vision_rope_native if use_native("vision_rope", q) else vision_rope_reference)(q, k, cos, sin)
