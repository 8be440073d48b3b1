"""A score from what each page showed: a mean over tokens and its noise over pages. Knows numbers only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, sqrt

__all__ = ["Estimate", "ratio_estimate"]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over tokens.

    Attributes:
        mean: Sum over all pages divided by all tokens.
        standard_error: Of the mean, pages taken as independent draws.
    """

    mean: float
    standard_error: float


def ratio_estimate(sums: Sequence[float], num_tokens: Sequence[int]) -> Estimate:
    """Ratio estimator over pages of different length.

    The variance is that of the residuals ``sum - mean * tokens`` of the pages (Cochran, "Sampling
    Techniques", 3rd ed., eq. 6.13, without the finite population correction).

    Args:
        sums: Of the score over the tokens of each page, at least two pages.
        num_tokens: Tokens of each page.
    """
    count, total = len(sums), sum(num_tokens)
    mean = fsum(sums) / total
    residuals = fsum((s - mean * n) ** 2 for s, n in zip(sums, num_tokens, strict=True))
    return Estimate(mean, sqrt(residuals * count / (count - 1)) / total)
