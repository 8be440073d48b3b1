"""Rotary embedding of the vision towers in plain torch, in place; knows tables and heads, no image."""

from __future__ import annotations

import torch
from torch import Tensor


def vision_rope_reference(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotates whole heads in float32 with one rounding at the end, as both vision towers do.

    ``(lo, hi) -> (lo*cos - hi*sin, hi*cos + lo*sin)`` on the two halves of a head; each product is rounded to
    float32 before the sum.

    Args:
        q: A[R, n, hd], any row and head strides; overwritten.
        k: The same; overwritten.
        cos: float32 [R, hd/2], not rounded further (``rope_table`` with dtype float32).
        sin: The same.
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    c, s = cos.to(wide).unsqueeze(1), sin.to(wide).unsqueeze(1)
    for x in (q, k):
        lo, hi = x.to(wide).chunk(2, dim=-1)
        x.copy_(torch.cat((lo * c + -hi * s, hi * c + lo * s), dim=-1))
