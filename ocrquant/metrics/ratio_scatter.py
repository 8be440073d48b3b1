"""Student's t around a ratio of sums, documents as units: plain, and freed from skewness.

The units of a ratio of sums are what each document adds to it (Cochran, "Sampling Techniques", 3rd edition,
1977, chapter 6). A few documents with large values make t too sure of itself; a cubic transformation takes
the skewness out of it to second order (P. Hall, "On the removal of skewness by transformation", J. R.
Statist. Soc. B 54, 1992). Knows arrays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

__all__ = ["RatioScatter", "t_quantile"]

_STRAIGHT = 1e-6

_Column = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RatioScatter:
    """How documents scatter around a ratio of sums.

    Attributes:
        num_clusters: Documents.
        deviation: Standard deviation of what each adds to the ratio, times their number; NaN for one alone.
        skewness: Of the same.
    """

    num_clusters: int
    deviation: float
    skewness: float

    @classmethod
    def of(cls, difference: _Column, total: _Column, ratio: float) -> RatioScatter:
        """Of documents whose differences sum to `ratio` times the sum of their totals."""
        number = len(total)
        if number < 2:
            return cls(number, math.nan, 0.0)
        residuals = (difference - ratio * total) * (number / total.sum())
        square = float(np.square(residuals).mean())
        skewness = float((residuals**3).mean()) / square**1.5 if square > 0.0 else 0.0
        return cls(number, math.sqrt(square * number / (number - 1)), skewness)

    @property
    def standard_error(self) -> float:
        """Of the ratio."""
        return self.deviation / math.sqrt(self.num_clusters)

    def intervals(self, estimate: float, alpha: float) -> list[tuple[float, float]]:
        """Ends of the plain and of the transformed interval, `alpha` beyond each; none for one document."""
        if self.num_clusters < 2:
            return []
        reach = t_quantile(1.0 - alpha, self.num_clusters) / math.sqrt(self.num_clusters)
        plain = (estimate - self.deviation * reach, estimate + self.deviation * reach)
        low, high = (estimate - self.deviation * self._untransformed(end) for end in (reach, -reach))
        return [plain, (low, high)]

    def p_above(self, excess: float) -> float:
        """Chance of an estimate so far above a threshold if the truth were at it."""
        if self.num_clusters < 2:
            return 1.0
        if self.deviation == 0.0:
            return 0.0 if excess > 0 else 1.0
        root, distance = math.sqrt(self.num_clusters), excess / self.deviation
        farthest = min(distance, self._transformed(distance, self.num_clusters))
        return float(special.stdtr(self.num_clusters - 1, -root * farthest))

    def chance_above(self, gap: float, num_clusters: int, alpha: float) -> float:
        """Chance that so many documents of this scatter show that the ratio is above a threshold.

        Args:
            gap: The true ratio less the threshold.
            num_clusters: Documents to come.
            alpha: Level of the one-sided test.
        """
        return self._chance(gap / self.deviation, num_clusters, alpha)

    def chance_below(self, gap: float, num_clusters: int, alpha: float) -> float:
        """The same for a threshold that lies `gap` above the true ratio."""
        return self._chance(-gap / self.deviation, num_clusters, alpha)

    def _chance(self, distance: float, num_clusters: int, alpha: float) -> float:
        nearest = min(abs(distance), math.copysign(1.0, distance) * self._transformed(distance, num_clusters))
        reach = math.sqrt(num_clusters) * nearest
        return float(special.ndtr(reach - t_quantile(1.0 - alpha, num_clusters)))

    def _transformed(self, distance: float, num_clusters: int) -> float:
        """Hall's cubic in the distance from the truth in deviations: symmetric to second order."""
        skew = self.skewness
        cubic = distance + skew * distance**2 / 3 + skew**2 * distance**3 / 27
        return cubic + skew / (6 * num_clusters)

    def _untransformed(self, value: float) -> float:
        skew = self.skewness
        value -= skew / (6 * self.num_clusters)
        # Below this the cubic is a straight line to the last digit of what is printed.
        if abs(skew) < _STRAIGHT:
            return value
        return 3 / skew * (math.cbrt(1 + skew * value) - 1)


def t_quantile(probability: float, num_clusters: int) -> float:
    """Of Student's t with one degree of freedom fewer than there are clusters."""
    return float(special.stdtrit(num_clusters - 1, probability))
