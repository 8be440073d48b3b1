"""RMS norm of the residual stream, with the previous sublayer's output added on the way."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ocrquant.kernels.operand import Operand
from ocrquant.kernels.rms_norm import rms_norm
from ocrquant.models.weights import WeightReader

__all__ = ["NormRule", "RmsNorm"]

NormRule = Literal["unit", "scaled"]
"""``unit``: times 1 + w, one rounding (Qwen3.5). ``scaled``: rounded, then times w (Llama, ERNIE)."""


class RmsNorm:
    """A norm of a model; see ``kernels.rms_norm`` for the rules.

    Args:
        reader: The checkpoint.
        name: Name of the norm.
        width: Elements of a row.
        eps: Added to the mean square.
        rule: How the weight is applied.
    """

    def __init__(self, reader: WeightReader, name: str, width: int, eps: float, rule: NormRule) -> None:
        # In the dtype of activations first: that is the weight that the model's own definition multiplies by.
        self.weight = reader.take(f"{name}.weight", (width,)).to(torch.float32)
        self.eps = eps
        self.rule = rule

    def __call__(self, x: Tensor, out: Operand, delta: Tensor | None = None) -> None:
        """Adds ``delta`` to the stream in place, then writes the normalised rows.

        Args:
            x: [R, width], the residual stream.
            out: What the readers need.
            delta: [R, width], output of the previous sublayer; None where there is none.
        """
        rms_norm(x, self.weight, self.eps, out, self.rule, delta)
