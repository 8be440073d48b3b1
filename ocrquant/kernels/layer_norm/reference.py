"""Plain torch definition of ``layer_norm``."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from ocrquant.kernels.emit import wide


def layer_norm_reference(x: Tensor, weight: Tensor, bias: Tensor, eps: float, out: Tensor) -> None:
    """``round((x - mean) * rsqrt(var + eps) * weight + bias)``, float32 inside, one rounding.

    Args:
        x: A[R, w], row stride free.
        weight: float32 [w].
        bias: float32 [w].
        eps: Added to the (biased) variance.
        out: A[R, w], row stride free; may be ``x`` itself.
    """
    values = wide(x)
    normed = F.layer_norm(values, weight.shape, weight.to(values.dtype), bias.to(values.dtype), eps)
    out.copy_(normed.to(x.dtype))
