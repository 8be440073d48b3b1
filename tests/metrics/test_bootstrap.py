"""Bootstrap intervals against draws that can be listed by hand, and against what an interval promises."""

import time

import numpy as np
import pytest

from ocrquant.errors import ShapeError
from ocrquant.metrics import bootstrap
from ocrquant.metrics.bootstrap import Interval, paired_bootstrap


def test_two_pages_by_hand():
    # Differences 3 and -1 of 10 and 30 characters. Draws: page 0 twice (chance 1/4): 6/20; one each (1/2):
    # 2/40; page 1 twice (1/4): -2/60. The outer 2.5 % lie within the outer quarters.
    result = paired_bootstrap([5, 2], [2, 3], [10, 30])
    assert result.estimate == pytest.approx(2 / 40)
    assert result.low == pytest.approx(-2 / 60)
    assert result.high == pytest.approx(6 / 20)
    assert result.includes_zero
    # With half of the draws between the bounds, both are at the middle value or an end of it.
    half = paired_bootstrap([5, 2], [2, 3], [10, 30], confidence=0.4)
    assert (half.low, half.high) == pytest.approx((2 / 40, 2 / 40))
    assert not half.includes_zero


def test_it_unpacks_and_is_named():
    estimate, low, high = paired_bootstrap([1, 2, 4], [0, 0, 0], [10, 10, 10])
    assert low < estimate < high
    assert Interval(1.0, 0.0, 2.0).includes_zero
    assert not Interval(1.0, 0.5, 2.0).includes_zero
    assert not Interval(-1.0, -2.0, -0.5).includes_zero


def test_identical_arms_differ_by_exactly_nothing():
    errors = np.random.default_rng(1).integers(0, 50, 40)
    assert paired_bootstrap(errors, errors, np.full(40, 100)) == (0.0, 0.0, 0.0)


def test_pairing_removes_what_both_arms_share():
    # Pages differ wildly, but one arm always makes exactly one error more: no spread is left.
    errors = np.random.default_rng(2).integers(0, 500, 60)
    result = paired_bootstrap(errors + 1, errors, np.full(60, 100))
    assert (result.low, result.high) == pytest.approx((0.01, 0.01))
    shuffled = np.random.default_rng(3).permutation(errors)
    unpaired = paired_bootstrap(errors + 1, shuffled, np.full(60, 100))
    assert unpaired.high - unpaired.low > 0.1


def test_documents_are_drawn_whole():
    # Ten copies of each page in one document: no more is known than from one page of each.
    rng = np.random.default_rng(4)
    errors, other, length = rng.integers(0, 30, 12), rng.integers(0, 30, 12), rng.integers(50, 90, 12)
    copies = [np.repeat(column, 10) for column in (errors, other, length)]
    documents = [f"document {i}" for i in np.repeat(np.arange(12), 10)]
    clustered = paired_bootstrap(*copies, clusters=documents)
    assert clustered == pytest.approx(paired_bootstrap(errors, other, length))
    by_page = paired_bootstrap(*copies)
    assert clustered.high - clustered.low > 2.5 * (by_page.high - by_page.low)  # sqrt(10)


@pytest.mark.parametrize(("confidence", "deviations"), [(0.95, 1.960), (0.8, 1.2816)])
def test_width_is_that_of_the_normal_law_where_pages_are_many(confidence, deviations):
    difference = np.random.default_rng(8).normal(3.0, 2.0, 400)
    result = paired_bootstrap(difference, np.zeros(400), np.full(400, 10.0), confidence=confidence)
    standard_error = difference.std() / 10 / np.sqrt(400)
    assert result.high - result.low == pytest.approx(2 * deviations * standard_error, rel=0.04)
    assert result.estimate - result.low == pytest.approx(deviations * standard_error, rel=0.08)


def test_interval_covers_the_true_difference_about_as_often_as_it_says():
    rng = np.random.default_rng(5)
    covered = 0
    for trial in range(200):
        length = rng.integers(100, 300, 80)
        hard = rng.gamma(1.0, 1.0, 80)  # errors shared by the two arms
        first = rng.poisson(length * (0.02 * hard + 0.01))
        second = rng.poisson(length * 0.02 * hard)
        result = paired_bootstrap(first, second, length, num_resamples=500, seed=trial)
        covered += result.low <= 0.01 <= result.high
    assert 0.88 <= covered / 200 <= 0.99


def test_seed_and_pieces(monkeypatch):
    rng = np.random.default_rng(6)
    columns = [rng.integers(0, 30, 25), rng.integers(0, 30, 25), rng.integers(50, 90, 25)]
    result = paired_bootstrap(*columns, seed=3)
    assert paired_bootstrap(*columns, seed=3) == result
    assert paired_bootstrap(*columns, seed=4) != result
    monkeypatch.setattr(bootstrap, "_CELLS", 25 * 7)
    assert paired_bootstrap(*columns, seed=3) == pytest.approx(result)


def test_one_document_says_nothing_about_others():
    result = paired_bootstrap([1, 2], [2, 2], [10, 10], clusters=["a", "a"])
    assert result == (-0.05, -np.inf, np.inf)
    assert result.includes_zero


def test_pages_without_characters():
    # A page with an empty truth still brings its errors, but no draw of it alone has a rate.
    result = paired_bootstrap([1, 4], [0, 0], [10, 0])
    assert result.estimate == 0.5
    assert (result.low, result.high) == pytest.approx((0.1, 0.5))


def test_what_cannot_be_resampled_is_refused():
    with pytest.raises(ShapeError, match=r"one number each a page, got lengths \[2, 1, 2\]"):
        paired_bootstrap([1, 2], [1], [10, 10])
    with pytest.raises(ShapeError, match=r"got lengths \[2, 2, 2, 1\]"):
        paired_bootstrap([1, 2], [1, 2], [10, 10], clusters=["a"])
    with pytest.raises(ShapeError, match="lengths"):
        paired_bootstrap([], [], [])
    with pytest.raises(ShapeError, match=r"a sum above zero, got 0\.0"):
        paired_bootstrap([1, 2], [1, 2], [0, 0])


def test_five_hundred_pages_are_quick():
    rng = np.random.default_rng(7)
    start = time.process_time()
    paired_bootstrap(rng.integers(0, 9, 500), rng.integers(0, 9, 500), rng.integers(50, 90, 500))
    assert time.process_time() - start < 5
