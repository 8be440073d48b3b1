"""Plain torch definition of ``rms_norm``."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ocrquant.kernels.emit import emit, wide
from ocrquant.kernels.operand import Operand

Rule = Literal["unit", "scaled"]


def rms_norm_reference(
    x: Tensor, weight: Tensor, eps: float, out: Operand, rule: Rule, delta: Tensor | None = None
) -> None:
    """Adds to the residual stream, normalises it, and writes the result as an operand.

    With ``delta``: ``x <- round(x + delta)`` in place first, so the norm sees what the stream holds.
    ``unit``: ``y = round(x * rsqrt(mean x^2 + eps) * (1 + w))``, float32 up to one rounding (Qwen3.5).
    ``scaled``: ``y = round(round(x * rsqrt(mean x^2 + eps)) * round(w))`` (Llama, ERNIE 4.5, PaddleOCR-VL).
    Then ``kernels.emit``.

    Args:
        x: A[R, w], row stride free; overwritten where ``delta`` is given.
        weight: float32 [w].
        eps: Added to the mean square.
        out: Operand of R rows and width w.
        rule: ``unit`` or ``scaled``.
        delta: A[R, w], or None.
    """
    if delta is not None:
        x.copy_(x + delta)
    values = wide(x)
    scaled = values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + eps)
    if rule == "unit":
        y = (scaled * (1.0 + weight.to(values.dtype))).to(x.dtype)
    else:
        y = scaled.to(x.dtype) * weight.to(x.dtype)
    emit(y, out)
