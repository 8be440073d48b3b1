"""Times arms against each other: interleaved repeats, medians, intervals that assume no distribution.

Knows callables and clocks. Does not know what is measured.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import binom

from ocrquant.errors import ShapeError

__all__ = ["MIN_REPEATS", "Estimate", "interleave", "median_interval", "ratio"]

MIN_REPEATS = 12
"""Below this the interval of a median is as wide as the data."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A median with its interval.

    Attributes:
        median: Of all repeats.
        low: Lower end.
        high: Upper end.
        repeats: How many there were.
    """

    median: float
    low: float
    high: float
    repeats: int

    def scaled(self, factor: float) -> Estimate:
        """The same in another unit."""
        ends = sorted((self.low * factor, self.high * factor))
        return Estimate(self.median * factor, ends[0], ends[1], self.repeats)

    def inverse(self, amount: float) -> Estimate:
        """``amount`` divided by it: a rate from a time."""
        return Estimate(amount / self.median, amount / self.high, amount / self.low, self.repeats)


def interleave(
    arms: Mapping[str, Callable[[], object]],
    *,
    repeats: int = MIN_REPEATS,
    warmup: int = 2,
    seed: int = 0,
    before: Callable[[], object] | None = None,
) -> dict[str, list[float]]:
    """Seconds of every repeat of every arm.

    Each repeat runs all arms once in an order of its own, so that what the machine does meanwhile meets all
    of them alike.

    Args:
        arms: What to run, by name.
        repeats: Of each arm.
        warmup: Runs of each arm before that do not count.
        seed: Of the orders.
        before: Run before every arm of every repeat, not timed: what empties the caches of what an arm before
            has read.
    """
    order, shuffle = list(arms), random.Random(seed)
    for _ in range(warmup):
        for name in order:
            arms[name]()
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(repeats):
        shuffle.shuffle(order)
        for name in order:
            if before is not None:
                before()
            begin = time.perf_counter()
            arms[name]()
            seconds[name].append(time.perf_counter() - begin)
    return seconds


def median_interval(values: Sequence[float], confidence: float = 0.95) -> Estimate:
    """The median and the narrowest pair of order statistics around it that covers the true one.

    How many of n values lie below the true median is binomial(n, 1/2) whatever their distribution
    (David and Nagaraja, "Order Statistics", section 7.1).

    Args:
        values: One a repeat.
        confidence: At least the chance that the interval holds the true median; with fewer than six values
            no pair reaches 0.95, and the range of all of them is given.

    Raises:
        ShapeError: There is no value.
    """
    if not len(values):
        raise ShapeError("repeats", expected="at least one", given=0, fix="measure something")
    ordered, count = np.sort(np.asarray(values, dtype=np.float64)), len(values)
    tail = (1.0 - confidence) / 2.0
    # The median lies below the (k+1)-th value when at most k values lie below it: the largest rare k.
    cut = max(0, int(np.searchsorted(binom.cdf(np.arange(count), count, 0.5), tail, side="right")) - 1)
    low, high = ordered[cut], ordered[count - 1 - cut]
    return Estimate(float(np.median(ordered)), float(low), float(high), count)


def ratio(slow: Sequence[float], fast: Sequence[float], confidence: float = 0.95) -> Estimate:
    """How many times faster: the median over repeats of one arm's time by the other's in the same repeat."""
    return median_interval([a / b for a, b in zip(slow, fast, strict=True)], confidence)
