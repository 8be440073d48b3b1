"""Smoothing: moving scale between the channels of an activation and the columns of the weights that read it.

Dividing a norm's multiplier by s and multiplying column c of every reader by s[c] leaves the model as it was,
but not what quantization does to it. Candidates follow SmoothQuant (arXiv 2211.10438) and AWQ (arXiv
2306.00978). Knows a norm's weight and matrices; does not know which norm has which readers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Candidate", "candidates", "column_magnitude", "fold_norm"]

_EXPONENTS = (0.15, 0.3, 0.45, 0.6, 0.75)

# A channel is moved by at most this factor against the typical one.
_LARGEST_FACTOR = 16.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """One smoothing vector to try.

    Attributes:
        exponent: Exponent of the activation's share.
        smoothing: float32 [hidden], finite and > 0.
    """

    exponent: float
    smoothing: Tensor


def column_magnitude(weights: Sequence[Tensor]) -> Tensor:
    """Root mean square of each column over all rows of all weights [out, in]; float32 [in]."""
    squares = sum((weight.float().square().sum(dim=0) for weight in weights), torch.zeros(()))
    return (squares / sum(len(weight) for weight in weights)).sqrt()


def candidates(activation: Tensor, column: Tensor) -> Iterator[Candidate]:
    """Vectors that hand a growing share of the activations' spread to the weights.

    Args:
        activation: float32 [hidden]: magnitude of each channel of the norm's output.
        column: float32 [hidden]: magnitude of each column of the readers.
    """
    is_live = (activation > 0) & (column > 0)
    if not bool(is_live.any()):
        return
    for exponent in _EXPONENTS:
        for balance in (0.0, 1.0 - exponent):
            factor = activation.clamp(min=_TINY).pow(exponent) / column.clamp(min=_TINY).pow(balance)
            center = factor[is_live].log().mean().exp()
            factor = (factor / center).clamp(1.0 / _LARGEST_FACTOR, _LARGEST_FACTOR)
            yield Candidate(exponent, torch.where(is_live, factor, 1.0))


_TINY = 2.0**-60


@torch.no_grad()
def fold_norm(weight: Tensor, smoothing: Tensor, *, offset: bool) -> tuple[Tensor, Tensor]:
    """Divides a norm's multiplier, rounds it to the model's dtype; says what the readers must multiply by.

    Args:
        weight: [hidden], the norm's weight in the dtype of the model.
        smoothing: float32 [hidden], finite and > 0.
        offset: Whether the multiplier is 1 + w instead of w.

    Returns:
        The new weight in the dtype of ``weight``, and float32 [hidden]: the multiplier before over the one
        after, which differs from ``smoothing`` by the rounding of the new weight. A channel that rounding
        would bring to zero, or whose multiplier is zero already, stays as it was, with 1.
    """
    shift = 1.0 if offset else 0.0
    before = weight.double() + shift
    folded = (before / smoothing.double() - shift).to(weight.dtype)
    after = folded.double() + shift
    exact = before / after
    is_usable = torch.isfinite(exact) & (exact > 0) & torch.isfinite(after)
    return torch.where(is_usable, folded, weight), torch.where(is_usable, exact, 1.0).float()
