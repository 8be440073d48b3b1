"""Plain torch definition of ``gated_rms_norm``."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ocrquant.kernels.emit import emit, wide
from ocrquant.kernels.operand import Operand


def gated_rms_norm_reference(o: Tensor, z: Tensor, weight: Tensor, eps: float, out: Operand) -> None:
    """Normalises each head of a Gated DeltaNet layer's output, gates it, and writes it as an operand.

    Per head over V, the order of ``Qwen3_5RMSNormGated``: ``h = round(o * rsqrt(mean o^2 + eps))``,
    ``h = round(h * round(w))``, ``y = round(h * silu(z))`` with silu and that product in float32. Then
    ``kernels.emit``. Kernels that keep float32 up to one cast define something else.

    Args:
        o: A[R, H * V].
        z: A[R, H * V], row stride free.
        weight: float32 [V].
        eps: Added to the mean square.
        out: Operand of R rows and width H * V.
    """
    heads = (-1, len(weight))
    values = wide(o).unflatten(-1, heads)
    scaled = values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + eps)
    weighted = scaled.to(o.dtype) * weight.to(o.dtype)
    gated = wide(weighted) * F.silu(wide(z)).unflatten(-1, heads)
    emit(gated.flatten(-2).to(o.dtype), out)
