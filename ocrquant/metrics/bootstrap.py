"""Confidence intervals for a difference between two arms judged on the same pages. Pure numpy.

Pages of one document are alike, so documents are what is drawn: a cluster bootstrap (Field and Welsh,
"Bootstrapping clustered data", JRSS B 2007) with percentile intervals. The arms are compared inside each
draw, so what a hard page does to both cancels. With fewer than about ten clusters such intervals are known to
be too narrow.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ocrquant.errors import ShapeError

__all__ = ["Interval", "cluster_sums", "paired_bootstrap"]

_CELLS = 1 << 20

Counts = Sequence[float] | npt.NDArray[np.number]
_Column = npt.NDArray[np.float64]


class Interval(NamedTuple):
    """An estimate with its confidence interval."""

    estimate: float
    low: float
    high: float

    @property
    def includes_zero(self) -> bool:
        """Whether no difference is among the plausible values."""
        return self.low <= 0.0 <= self.high


def paired_bootstrap(
    numerators: Counts,
    baseline_numerators: Counts,
    denominators: Counts,
    *,
    clusters: Sequence[Hashable] | None = None,
    num_resamples: int = 10_000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Interval for ``sum(numerators) / sum(denominators) - sum(baseline_numerators) / sum(denominators)``.

    For a character error rate: edits of one arm, edits of the other, characters of the truth, one each a
    page. For a mean KL: summed KL, zeros, positions.

    Args:
        numerators: One a page.
        baseline_numerators: One a page, of the arm that is subtracted.
        denominators: One a page, >= 0, the same for both arms.
        clusters: What each page belongs to (its document); each page by itself when left out.
        num_resamples: Draws of as many clusters as there are, with replacement.
        confidence: Share of the draws between ``low`` and ``high``, equal tails cut off.
        seed: Makes the draws; the same seed gives the same interval.

    Returns:
        The interval. A draw whose denominators sum to zero is left out. With fewer than two clusters nothing
        is known about others: ``low`` is -inf and ``high`` inf.

    Raises:
        ShapeError: The lengths differ, there is no page, or the denominators sum to zero.
    """
    columns = [np.asarray(c, dtype=np.float64) for c in (numerators, baseline_numerators, denominators)]
    _check(columns, clusters)
    if clusters is not None:
        columns = cluster_sums(columns, clusters)
    difference, total = columns[0] - columns[1], columns[2]
    estimate = float(difference.sum() / total.sum())
    num_clusters = len(total)
    if num_clusters < 2:
        return Interval(estimate, -np.inf, np.inf)

    generator = np.random.default_rng(seed)
    step = max(1, _CELLS // num_clusters)
    rates = []
    for start in range(0, num_resamples, step):
        drawn = generator.integers(num_clusters, size=(min(step, num_resamples - start), num_clusters))
        totals = total[drawn].sum(axis=1)
        usable = totals > 0
        rates.append(difference[drawn].sum(axis=1)[usable] / totals[usable])
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(np.concatenate(rates), [tail, 1.0 - tail])
    return Interval(estimate, float(low), float(high))


def cluster_sums(columns: Sequence[Counts], clusters: Sequence[Hashable]) -> list[_Column]:
    """Each column summed over the members of each cluster, clusters in the order of their first page."""
    numbers: dict[Hashable, int] = {}
    index = np.array([numbers.setdefault(cluster, len(numbers)) for cluster in clusters])
    return [np.bincount(index, weights=np.asarray(c)).astype(np.float64) for c in columns]


def _check(columns: list[_Column], clusters: Sequence[Hashable] | None) -> None:
    lengths = [len(column) for column in columns] + ([] if clusters is None else [len(clusters)])
    if len(set(lengths)) != 1 or lengths[0] == 0:
        raise ShapeError(
            "pages to resample",
            expected="one number each a page",
            given=f"lengths {lengths}",
            fix="pass every column for the same pages",
        )
    if not columns[2].sum() > 0:
        raise ShapeError(
            "denominators to resample",
            expected="a sum above zero",
            given=float(columns[2].sum()),
            fix="leave this score out where the truth has nothing to count",
        )
