"""Which choices are measured, and what stands for the others."""

import math

import pytest

from ocrquant.assign.grid import grid_plans
from ocrquant.formats import Precision
from ocrquant.sensitivity.estimates import Estimate
from ocrquant.sensitivity.screening import (
    MIN_LARGE,
    MIN_SCATTER,
    correction_of,
    expected_regret,
    largest,
    regret,
)
from tests.assign.builders import random_scores, sensitivity_of

BF16, FP8, NVFP4 = Precision.BF16, Precision.FP8, Precision.NVFP4


def estimates(means, noise=0.1):
    return {choice: Estimate(mean, noise * mean) for choice, mean in means.items()}


def test_the_largest_of_each_format_are_measured_first():
    means = {(f"g{i}", NVFP4): 1.0 for i in range(20)} | {(f"g{i}", FP8): 1e-4 * 0.1**i for i in range(20)}
    means["g7", NVFP4] = 4.0
    found = largest(estimates(means))
    # 23 in all: the large one and three more are 0.3 of it. In FP8 the first one would be enough.
    assert [c for c in found if c[1] is NVFP4] == [(g, NVFP4) for g in ("g7", "g0", "g1", "g10")]
    assert [c for c in found if c[1] is FP8] == [(f"g{i}", FP8) for i in range(MIN_LARGE)]


def test_ratio_is_the_median_of_the_format_or_of_a_kind_that_has_enough():
    kinds = {f"{kind}{i}": kind for kind in "ab" for i in range(8)}
    gradient = estimates({(group, NVFP4): 1.0 for group in kinds})
    measured = {(f"a{i}", NVFP4): 2.0 for i in range(5)} | {("b0", NVFP4): 0.5, ("b1", NVFP4): 100.0}
    found = correction_of(gradient, estimates(measured), kinds)
    assert found.ratio["a7", NVFP4] == pytest.approx(2.0)
    assert found.ratio["b7", NVFP4] == pytest.approx(2.0)  # the median over all seven
    measured |= {(f"b{i}", NVFP4): 3.0 for i in range(2, 6)}
    found = correction_of(gradient, estimates(measured), kinds)
    assert found.ratio["b7", NVFP4] == pytest.approx(3.0)
    assert found.ratio["a7", NVFP4] == pytest.approx(2.0)


def test_scatter_is_that_of_the_ratios_and_wider_where_pages_disagree():
    kinds = {f"g{i}": "a" for i in range(4)}
    gradient = estimates({(f"g{i}", NVFP4): 1.0 for i in range(3)}) | {("g3", NVFP4): Estimate(1.0, 0.3)}
    spread = {("g0", NVFP4): math.e**-1, ("g1", NVFP4): 1.0, ("g2", NVFP4): math.e}
    found = correction_of(gradient, estimates(spread), kinds)
    assert found.scatter["g0", NVFP4] == pytest.approx(1 / 0.6745)
    assert found.scatter["g3", NVFP4] == pytest.approx(3 / 0.6745)
    equal = correction_of(gradient, estimates(dict.fromkeys(spread, 1.0)), kinds)
    assert equal.scatter["g0", NVFP4] == MIN_SCATTER


def test_nothing_measured_corrects_nothing():
    found = correction_of(estimates({("g", FP8): 1.0}), {}, {"g": "a"})
    assert found.ratio == {("g", FP8): 1.0}


def test_regret_by_hand():
    scores = {("a", FP8): 1.0, ("b", FP8): 3.0}
    assert regret(scores, {"a": BF16, "b": FP8}, {"a": FP8, "b": BF16}) == 2.0
    assert regret(scores, {"a": FP8, "b": BF16}, {"a": FP8, "b": BF16}) == 0.0
    assert regret(scores, {"a": FP8, "b": BF16}, {"a": BF16, "b": BF16}) == 0.0


def test_what_decides_no_plan_is_worth_nothing(rng):
    """Scores that are sure cost nothing; of unsure ones those that tip a plan do."""
    scores = random_scores(rng, 12)
    known = sensitivity_of(scores)
    by_budget, by_choice = expected_regret(known, {}, grid_plans)
    assert set(by_budget.values()) == {0.0}
    assert by_choice == {}
    everything = {(row.group, row.precision): 0.5 for row in known.rows}
    by_budget, by_choice = expected_regret(known, everything, grid_plans)
    assert max(by_budget.values()) > 0.005
    assert all(value >= 0 for value in by_choice.values())
    assert sum(by_choice.values()) == pytest.approx(sum(by_budget.values()), rel=1e-6)
    slightly, _ = expected_regret(known, dict.fromkeys(everything, 0.05), grid_plans)
    assert sum(slightly.values()) < sum(by_budget.values())
    assert expected_regret(known, everything, grid_plans) == (by_budget, by_choice)


def test_a_choice_in_doubt_between_two_is_found():
    """At 12 bits two of four groups stay in bf16: the worst one, and one of two that are nearly alike."""
    scores = {"a": {NVFP4: 1.0}, "b": {NVFP4: 1.05}, "c": {NVFP4: 1000.0}, "d": {NVFP4: 1e-6}}
    _, by_choice = expected_regret(sensitivity_of(scores), {("a", NVFP4): 0.3, ("c", NVFP4): 0.3}, grid_plans)
    assert by_choice["a", NVFP4] > 0
    assert by_choice["c", NVFP4] == 0
