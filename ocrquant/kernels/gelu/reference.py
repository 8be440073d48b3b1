"""Plain torch definition of ``gelu``."""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from ocrquant.kernels.emit import wide

Form = Literal["tanh", "erf"]


def gelu_reference(x: Tensor, out: Tensor, form: Form) -> None:
    """GELU of each element, float32 inside, one rounding.

    ``tanh``: ``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`` (``gelu_pytorch_tanh``);
    ``erf``: ``x / 2 * (1 + erf(x / sqrt(2)))`` (``gelu``).

    Args:
        x: A[R, w], row stride free.
        out: A[R, w], row stride free; may be ``x`` itself.
        form: ``tanh`` or ``erf``.
    """
    out.copy_(F.gelu(wide(x), approximate="tanh" if form == "tanh" else "none").to(x.dtype))
