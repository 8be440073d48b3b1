"""How sure the ratio of the contest is: its interval over pages. Knows numbers by page; pure numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["ratio_interval"]

NUM_RESAMPLES = 2000

_Pages = Mapping[str, Mapping[str, Sequence[Sequence[float]]]]


def ratio_interval(
    seeds: Sequence[_Pages], budget: str, ours: str, theirs: Sequence[str]
) -> tuple[float, float]:
    """95 % percentile interval of the mean over seeds of our KL over the least of theirs.

    Pages are drawn with replacement, the same ones for all sides, for each seed by itself; which of their
    plans is the better one is asked again in each draw.

    Args:
        seeds: Of each seed: side -> budget -> page by page, KL summed over its tokens and their number.
        budget: Name of the budget.
        ours: Our side.
        theirs: The other sides.
    """
    generator = np.random.default_rng(0)
    draws = [_ratios(judged, budget, ours, theirs, generator) for judged in seeds]
    low, high = np.quantile(np.mean(draws, axis=0), [0.025, 0.975])
    return float(low), float(high)


def _ratios(
    judged: _Pages, budget: str, ours: str, theirs: Sequence[str], generator: np.random.Generator
) -> npt.NDArray[np.float64]:
    # All sides were judged on the same tokens, whose number cancels.
    sums = {side: np.array([kl for kl, _ in judged[side][budget]]) for side in (ours, *theirs)}
    count = len(sums[ours])
    drawn = generator.integers(count, size=(NUM_RESAMPLES, count))
    best = np.min([sums[side][drawn].sum(1) for side in theirs], axis=0)
    ratios: npt.NDArray[np.float64] = sums[ours][drawn].sum(1) / best
    return ratios
