"""Cosines and sines of rotary positions in plain torch; knows positions and frequencies, no head."""

from __future__ import annotations

import torch
from torch import Tensor


def rope_table_reference(
    positions: Tensor,
    inv_freq: Tensor,
    axis: Tensor,
    out_cos: Tensor,
    out_sin: Tensor,
    dtype: torch.dtype,
) -> None:
    """Fills the table of one step: ``angle[r, j] = positions[axis[j], r] * inv_freq[j]``.

    ``axis`` says which position a frequency turns with, so one op serves plain rotary (all 0), interleaved
    M-RoPE (0 1 2 0 1 2 ... as Qwen3.5), contiguous sections (0 ... 1 ... 2 ... as PaddleOCR-VL) and the
    two-dimensional rotary of the vision towers (0 ... 1 ...).

    Args:
        positions: int32 [axes, R].
        inv_freq: float32 [d/2]; d is the rotated width of a head.
        axis: int32 [d/2], each in 0 .. axes - 1.
        out_cos: float32 (float64 for an fp64 oracle) [R, d/2]; overwritten.
        out_sin: The same; overwritten.
        dtype: What both are rounded to before they are stored in the wider type: the activation dtype in the
            text models, float32 in the vision towers.

    The angle is one product in the type of the table, as in the models' own definition.
    """
    wide = out_cos.dtype
    angle = positions[axis.long()].to(wide).mT * inv_freq.to(wide)
    out_cos.copy_(angle.cos().to(dtype))
    out_sin.copy_(angle.sin().to(dtype))
