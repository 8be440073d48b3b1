import time

import numpy as np
import pytest

from ocrquant.bench.timing import Estimate, interleave, median_interval, ratio
from ocrquant.errors import ShapeError


def test_arms_take_turns_and_warm_up_apart():
    calls = []
    seconds = interleave(
        {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, repeats=12, warmup=1
    )
    assert calls[:2] == ["a", "b"]
    pairs = list(zip(calls[2::2], calls[3::2], strict=True))
    assert all(set(pair) == {"a", "b"} for pair in pairs)
    assert len(set(map(tuple, pairs))) == 2, "the order changes"
    assert {name: len(s) for name, s in seconds.items()} == {"a": 12, "b": 12}


def test_what_comes_before_every_arm_is_not_timed():
    calls = []

    def flush():
        time.sleep(0.02)
        calls.append("flush")

    seconds = interleave({"a": lambda: calls.append("a")}, repeats=3, warmup=1, before=flush)
    assert calls == ["a", *["flush", "a"] * 3]
    assert max(seconds["a"]) < 0.02


@pytest.mark.parametrize("count", [6, 12, 13, 25, 40])
def test_the_interval_covers_the_median_as_often_as_it_says(count):
    generator = np.random.default_rng(count)
    draws = generator.lognormal(size=(4000, count))
    estimates = [median_interval(draw) for draw in draws]
    coverage = np.mean([e.low <= 1.0 <= e.high for e in estimates])
    assert coverage >= 0.94
    assert all(e.low <= e.median <= e.high for e in estimates)
    if count > 12:
        assert coverage < 0.99, "wider than it needs to be"


def test_twelve_values_by_hand():
    # P(at most 2 of 12 below) = 79 / 4096 = 0.0193, P(at most 3) = 0.073: the third and the tenth value.
    assert median_interval(range(1, 13)) == Estimate(6.5, 3.0, 10.0, 12)


def test_few_values_give_their_range_and_none_is_refused():
    assert median_interval([3.0, 1.0, 2.0]) == Estimate(2.0, 1.0, 3.0, 3)
    with pytest.raises(ShapeError, match="repeats"):
        median_interval([])


def test_ratios_are_taken_within_repeats():
    assert ratio([2.0, 20.0, 200.0], [1.0, 10.0, 100.0]) == Estimate(2.0, 2.0, 2.0, 3)


def test_scaling_and_rates():
    assert Estimate(2.0, 1.0, 4.0, 5).scaled(10) == Estimate(20.0, 10.0, 40.0, 5)
    assert Estimate(2.0, 1.0, 4.0, 5).inverse(8) == Estimate(4.0, 2.0, 8.0, 5)
