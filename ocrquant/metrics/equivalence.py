"""Is one arm as good as another on the same documents? Tests of paired differences.

*Within a margin* is shown by two one-sided tests (TOST; Schuirmann, J. Pharmacokin. Biopharm. 15, 1987): a
difference is equivalent at level alpha where its interval of confidence 1 - 2 alpha lies between -margin and
+margin. Three such intervals are taken, and the outer ends count, so the level is at most that of the best:

- percentiles of a bootstrap that draws documents (`paired_bootstrap`);
- Student's t with documents as units, which allows for few of them, as percentiles do not;
- the same t after Hall's transformation, which removes the skewness that a few pages bring which lose their
  place (`ratio_scatter`). With a true loss at the margin, alpha 5 % and 1,500 trials each: where losses
  follow a gamma law of shape 0.2, t and bootstrap alone call 17 % of samples of 30 documents equivalent and
  12 % of 80; the three together 7 % of both.

*Worse* is shown by t, plain and transformed, one-sided; several such claims at once are held to one level by
`holm`. A rise in rare events, such as outputs that end in a loop, is shown by the exact sign test of
documents (McNemar's test where each page is a document).

Below `MIN_CLUSTERS` documents nothing is concluded. No such test sees a failure that struck none of the
documents: `unseen_share` says how common that may still be. Knows numbers; knows no page, arm or file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from scipy import special

from ocrquant.metrics.bootstrap import Counts, cluster_sums, paired_bootstrap
from ocrquant.metrics.outcomes import Outcome
from ocrquant.metrics.ratio_scatter import RatioScatter

__all__ = [
    "MIN_CLUSTERS",
    "POWER",
    "MarginTest",
    "clusters_for_rise",
    "holm",
    "margin_test",
    "sign_test",
    "unseen_share",
]

MIN_CLUSTERS = 10
"""Below so many clusters both intervals are known to be too narrow."""
POWER = 0.8
"""Chance of a clear answer that the number of further documents is planned for."""

_MANY = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MarginTest:
    """A difference of two rates against a margin.

    Attributes:
        estimate: First rate less the second.
        scatter: How documents scatter around it.
        low: Lower end of the interval of confidence 1 - 2 alpha, the outer one of all forms; -inf with fewer
            than two clusters.
        high: Upper end; inf with fewer than two clusters.
        p_worse: Chance of so large an estimate if the first rate were no worse: one-sided, by t, the larger
            of the plain and the transformed one.
        margin: Largest difference that counts as none.
        alpha: Level of each one-sided test.
        is_distance: The rate is a distance from the second arm, which chance alone never makes zero: only
            values above the margin are worse.
    """

    estimate: float
    scatter: RatioScatter
    low: float
    high: float
    p_worse: float
    margin: float
    alpha: float
    is_distance: bool

    def outcome(self, *, is_beyond_chance: bool) -> Outcome:
        """What may be concluded.

        Args:
            is_beyond_chance: Whether `p_worse` stands among all claims that are made with it (`holm`).

        Returns:
            ``equivalent`` within the margin; else ``worse`` where the difference is beyond chance; else
            ``better`` where it is below zero beyond chance; else ``unsettled``.
        """
        if self.num_clusters < MIN_CLUSTERS:
            return "unsettled"
        if self.high < self.margin and (self.is_distance or self.low > -self.margin):
            return "equivalent"
        if is_beyond_chance and self.low > self._threshold:
            return "worse"
        return "better" if self.high < 0 else "unsettled"

    def clusters_to_settle(self, alpha_worse: float) -> int | None:
        """About how many clusters, these included, would settle it with a chance of `POWER`.

        It is assumed that the difference stays what it is, and the scatter and skewness of documents as well:
        the number that shows equivalence where the estimate is within the margin, else the number that shows
        it worse, or better. Normal approximation, with quantiles of t.

        Args:
            alpha_worse: Level at which one claim of `worse` stands among the others.

        Returns:
            At least `MIN_CLUSTERS`, and just that where a single document tells nothing of the scatter; None
            where ten million are not enough.
        """
        if self.num_clusters < 2 or self.scatter.deviation == 0.0:
            return MIN_CLUSTERS
        above = self.scatter.chance_above
        below = self.scatter.chance_below
        if self.estimate >= self.margin:
            gap = self.estimate - self._threshold
            return _smallest(lambda n: above(gap, n, alpha_worse))
        if self.is_distance:
            return _smallest(lambda n: below(self.margin - self.estimate, n, self.alpha))
        if self.estimate <= -self.margin:
            return _smallest(lambda n: below(-self.estimate, n, self.alpha))
        room, room_below = self.margin - self.estimate, self.margin + self.estimate
        return _smallest(lambda n: below(room, n, self.alpha) + above(room_below, n, self.alpha) - 1.0)

    @property
    def num_clusters(self) -> int:
        """Documents."""
        return self.scatter.num_clusters

    @property
    def standard_error(self) -> float:
        """Of the estimate; NaN with fewer than two clusters."""
        return self.scatter.standard_error

    @property
    def _threshold(self) -> float:
        """What a worse arm must exceed."""
        return self.margin if self.is_distance else 0.0


def margin_test(
    numerators: Counts,
    baseline_numerators: Counts,
    denominators: Counts,
    *,
    margin: float,
    alpha: float = 0.05,
    is_distance: bool = False,
    clusters: Sequence[Hashable],
    num_resamples: int = 10_000,
    seed: int = 0,
) -> MarginTest:
    """Tests ``sum(numerators) / sum(denominators) - sum(baseline_numerators) / sum(denominators)``.

    Args:
        numerators: One a page, such as character errors or summed KL.
        baseline_numerators: One a page, of the arm that is subtracted.
        denominators: One a page, >= 0, the same for both arms.
        margin: Largest difference that counts as none, > 0, in the unit of the rate.
        alpha: Level of each one-sided test; the interval has confidence 1 - 2 alpha.
        is_distance: The rate measures how far one arm is from the other and is never below zero.
        clusters: The document of each page.
        num_resamples: Draws of the bootstrap.
        seed: Makes the draws.

    Raises:
        ShapeError: The lengths differ, there is no page, or the denominators sum to zero.
    """
    interval = paired_bootstrap(
        numerators,
        baseline_numerators,
        denominators,
        clusters=clusters,
        num_resamples=num_resamples,
        confidence=1.0 - 2.0 * alpha,
        seed=seed,
    )
    first, second, total = cluster_sums([numerators, baseline_numerators, denominators], clusters)
    estimate, threshold = interval.estimate, margin if is_distance else 0.0
    scatter = RatioScatter.of(first - second, total, estimate)
    low, high = interval.low, interval.high
    for bottom, top in scatter.intervals(estimate, alpha):
        low, high = min(low, bottom), max(high, top)
    return MarginTest(
        estimate=estimate,
        scatter=scatter,
        low=low,
        high=high,
        p_worse=scatter.p_above(estimate - threshold),
        margin=margin,
        alpha=alpha,
        is_distance=is_distance,
    )


def sign_test(num_more: int, num_fewer: int) -> float:
    """Chance of so many rises if a rise were as likely as a fall: one-sided and exact.

    Args:
        num_more: Documents with more events in the first arm.
        num_fewer: Documents with fewer. Documents with equally many say nothing.
    """
    return float(special.bdtr(num_fewer, num_more + num_fewer, 0.5))


def clusters_for_rise(num_more: int, num_fewer: int, num_clusters: int, alpha: float) -> int:
    """About how many clusters would show a rise at the shares seen, with a chance of `POWER`.

    Normal approximation of the sign test.

    Args:
        num_more: Documents with more events; above `num_fewer`.
        num_fewer: Documents with fewer.
        num_clusters: All documents.
        alpha: Level at which the claim has to stand.
    """
    deviation = (num_more - num_fewer) / math.sqrt(num_more + num_fewer)
    wanted = float(special.ndtri(1.0 - alpha)) + float(special.ndtri(POWER))
    return max(MIN_CLUSTERS, math.ceil(num_clusters * (wanted / deviation) ** 2))


def holm(p_values: Sequence[float], alpha: float) -> list[bool]:
    """Which of several claims stand so that the chance of any false one is at most `alpha`.

    S. Holm, "A simple sequentially rejective multiple test procedure", Scand. J. Statist. 6, 1979.
    """
    stands = [False] * len(p_values)
    for done, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        if p_values[index] > alpha / (len(p_values) - done):
            break
        stands[index] = True
    return stands


def unseen_share(num_clusters: int, alpha: float) -> float:
    """Largest share of documents that a failure may strike and yet strike none of these with chance `alpha`.

    Solves ``(1 - share) ** num_clusters = alpha``; about 3 over `num_clusters` at 5 %.
    """
    return -math.expm1(math.log(alpha) / num_clusters)


def _smallest(power: Callable[[int], float]) -> int | None:
    """The smallest number of clusters with enough power, by doubling and halving."""
    high = MIN_CLUSTERS
    if power(high) >= POWER:
        return high
    while power(high) < POWER:
        high *= 2
        if high > _MANY:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power(middle) >= POWER else (middle, high)
    return high
