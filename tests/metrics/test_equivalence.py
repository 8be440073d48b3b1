"""Tests of equivalence against numbers by hand, and against what a level promises, in simulations."""

import math

import numpy as np
import pytest

from ocrquant.metrics.equivalence import (
    MIN_CLUSTERS,
    POWER,
    clusters_for_rise,
    holm,
    margin_test,
    sign_test,
    unseen_share,
)
from ocrquant.metrics.ratio_scatter import RatioScatter

ALPHA = 0.05


def run(differences, lengths=None, *, margin=0.01, **options):
    """Differences as counts; one document a page."""
    lengths = np.full(len(differences), 100.0) if lengths is None else lengths
    options = {"num_resamples": 400, "clusters": range(len(differences))} | options
    return margin_test(differences, np.zeros(len(differences)), lengths, margin=margin, **options)


def outcome(test, *, alpha=ALPHA):
    return test.outcome(is_beyond_chance=test.p_worse <= alpha)


def shares(make, num_documents, *, trials=400, seed=0, margin=0.01):
    """How often each outcome comes of differences a character that `make(generator, number)` draws."""
    generator = np.random.default_rng(seed)
    found = {"equivalent": 0, "better": 0, "worse": 0, "unsettled": 0}
    for trial in range(trials):
        lengths = generator.integers(100, 300, num_documents).astype(float)
        test = run(make(generator, num_documents) * lengths, lengths, margin=margin, seed=trial)
        found[outcome(test)] += 1
    return {name: number / trials for name, number in found.items()}


def test_by_hand():
    # Twelve documents of 100 characters, differences 0 and 2 in turn: mean 1, variance 12 / 11, so the
    # standard error of the rate is sqrt(12 / 11 / 12) / 100 = 0.0030151; t of 11 degrees and 5 % is 1.79588.
    # There is no skewness, and the bootstrap is narrower.
    test = run([0, 2] * 6, margin=0.016)
    assert test.estimate == pytest.approx(0.01)
    assert test.standard_error == pytest.approx(0.0030151, rel=1e-4)
    assert test.low == pytest.approx(0.01 - 0.0054149, rel=1e-3)
    assert test.high == pytest.approx(0.01 + 0.0054149, rel=1e-3)
    # t = 3.3166 with 11 degrees.
    assert test.p_worse == pytest.approx(0.003437, rel=1e-2)
    assert outcome(test) == "equivalent"
    assert outcome(run([0, 2] * 6, margin=0.015)) == "worse"
    assert outcome(run([-1, 1] * 6, margin=0.001)) == "unsettled"
    assert outcome(run([-1, -3] * 6, margin=0.001)) == "better"


def test_skewness_moves_both_ends_up():
    # One document of thirty loses 30 characters of 100: skewness (n - 2) / sqrt(n - 1) = 5.1995, deviation
    # 30 / sqrt(30) a hundred characters. t of 29 degrees and 5 % is 1.69913.
    units = RatioScatter.of(np.array([30.0] + [0.0] * 29), np.full(30, 100.0), 0.01)
    assert units.skewness == pytest.approx(5.1995, rel=1e-4)
    assert units.deviation == pytest.approx(0.3 / math.sqrt(30), rel=1e-4)
    (low, high), (skew_low, skew_high) = units.intervals(0.01, ALPHA)
    assert (low, high) == pytest.approx((0.01 - 0.016991, 0.01 + 0.016991), rel=1e-3)
    # -1.69913 / sqrt(30) - 5.1995 / 180 = -0.339103; 1 - 5.1995 * 0.339103 = -0.763167, cube root -0.913829;
    # 3 / 5.1995 * (-1.913829) = -1.104239 deviations.
    assert skew_high == pytest.approx(0.01 + 1.104239 * 0.3 / math.sqrt(30), rel=1e-3)
    assert skew_low > low


def test_transformation_is_undone_by_its_inverse():
    units = RatioScatter.of(np.random.default_rng(0).gamma(0.4, 2.0, 40), np.full(40, 50.0), 0.016)
    for value in (-0.7, -0.1, 0.0, 0.3):
        assert units._untransformed(units._transformed(value, 40)) == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize(
    ("name", "make", "largest"),
    [
        ("symmetric", lambda rng, n: rng.normal(0.01, 0.02, n), 0.075),
        ("counted", lambda rng, n: rng.poisson(2.0, n) / 200, 0.075),
        ("skewed", lambda rng, n: rng.gamma(0.2, 0.05, n), 0.115),
        ("rare", lambda rng, n: 0.1 * (rng.random(n) < 0.1), 0.075),
    ],
)
def test_a_loss_at_the_margin_is_called_equivalent_no_more_often_than_the_level(name, make, largest):
    # 5 %, and two standard deviations of 400 trials are 2.2 %; the skewed law keeps 7 %.
    assert shares(make, 40)["equivalent"] <= largest


def test_planted_fault_a_plain_bootstrap_breaks_the_level():
    # What the test above would see if the end of the bootstrap alone counted.
    from ocrquant.metrics.bootstrap import paired_bootstrap

    generator, called = np.random.default_rng(0), 0
    for trial in range(300):
        differences = generator.gamma(0.2, 0.05, 40) * 100
        interval = paired_bootstrap(
            differences, np.zeros(40), np.full(40, 100), confidence=0.9, num_resamples=300, seed=trial
        )
        called += interval.high < 0.01
    assert called / 300 > 0.115


def test_no_difference_is_called_worse_no_more_often_than_the_level():
    found = shares(lambda rng, n: rng.normal(0.0, 0.03, n), 40)
    assert found["worse"] <= 0.075


def test_power_grows_with_documents_and_with_the_margin():
    def make(rng, n):
        return rng.normal(0.0, 0.03, n)

    powers = [shares(make, number, trials=150)["equivalent"] for number in (20, 60, 150)]
    assert powers[0] < powers[1] - 0.1 < powers[2] - 0.2
    assert powers[2] > 0.9
    assert shares(make, 60, trials=150, margin=0.02)["equivalent"] > powers[1] + 0.1


def test_planned_number_of_documents_has_the_power_that_it_is_planned_for():
    # Scatter 3 points, true difference 0.2 points: planned from one sample that shows just these.
    base = np.random.default_rng(3).normal(0, 1, 20)
    exact = 0.2 + 3.0 * (base - base.mean()) / base.std(ddof=1)
    planned = run(exact).clusters_to_settle(ALPHA)
    # (z_0.95 + z_0.8) ** 2 * (3 / 0.8) ** 2 = 86.9; t for z and the skewness of these ask for some more.
    assert 87 <= planned <= 110
    reached = shares(lambda rng, n: rng.normal(0.002, 0.03, n), planned, trials=200)["equivalent"]
    assert POWER - 0.08 <= reached <= 0.97


def test_more_documents_are_asked_for_whenever_it_is_unsettled():
    generator, seen, more = np.random.default_rng(5), 0, 0
    for trial in range(150):
        number = int(generator.integers(MIN_CLUSTERS, 60))
        centre = generator.choice([-0.012, 0.0, 0.006, 0.012])
        values = 100 * (centre + 0.03 * (generator.gamma(0.5, 1.0, number) - 0.5))
        for is_distance in (False, True):
            test = run(values, seed=trial, is_distance=is_distance)
            if outcome(test) == "unsettled":
                seen += 1
                wanted = test.clusters_to_settle(ALPHA)
                more += wanted is None or wanted > number
    assert seen > 50
    # The few others are held back by the bootstrap alone.
    assert more >= 0.95 * seen


def test_nearer_to_the_margin_takes_more_and_at_it_no_number_is_enough():
    def wanted(mean, **options):
        return run([mean - 9, mean + 9] * 10, **options).clusters_to_settle(ALPHA)

    assert wanted(0.0) < wanted(0.5) < wanted(0.9)
    assert wanted(1.0, is_distance=True) is None
    assert wanted(4.0) < wanted(2.0)  # to show it worse
    assert wanted(-4.0) < wanted(-2.0)  # to show it better


def test_a_distance_is_worse_only_above_the_margin():
    near, far = [0.3, 0.5] * 10, [2.3, 2.5] * 10
    assert outcome(run(near, is_distance=True)) == "equivalent"
    assert outcome(run(far, is_distance=True)) == "worse"
    assert outcome(run([0.1, 2.3] * 10, is_distance=True)) == "unsettled"
    assert outcome(run([0.1, 2.3] * 10)) == "worse"  # as a difference it is above zero


def test_one_document_and_few_documents_conclude_nothing():
    one = run([5.0, 5.0, 5.0], clusters=["a"] * 3)
    assert (one.low, one.high, one.p_worse) == (-math.inf, math.inf, 1.0)
    assert math.isnan(one.standard_error)
    assert outcome(one) == "unsettled"
    assert one.clusters_to_settle(ALPHA) == MIN_CLUSTERS
    few = run([0.0] * (MIN_CLUSTERS - 1))
    assert outcome(few) == "unsettled"
    assert few.clusters_to_settle(ALPHA) == MIN_CLUSTERS


def test_documents_without_scatter():
    assert outcome(run([0.0] * 10)) == "equivalent"
    assert outcome(run([0.5] * 10)) == "equivalent"
    assert outcome(run([2.0] * 10)) == "worse"
    assert outcome(run([-2.0] * 10)) == "better"
    assert run([2.0] * 10).p_worse == 0.0
    assert run([0.0] * 10).p_worse == 1.0


def test_a_claim_that_does_not_stand_among_others_is_unsettled():
    test = run([0, 2] * 6, margin=0.015)
    assert test.outcome(is_beyond_chance=False) == "unsettled"


def test_pages_of_one_document_count_as_one():
    documents = [index // 4 for index in range(80)]
    values = np.repeat(np.random.default_rng(1).normal(0, 3, 20), 4)
    clustered, apart = run(values, clusters=documents), run(values)
    assert clustered.num_clusters == 20
    assert clustered.standard_error > 1.8 * apart.standard_error


def test_sign_test_by_hand():
    assert sign_test(0, 0) == 1.0
    assert sign_test(5, 0) == pytest.approx(1 / 32)
    assert sign_test(0, 5) == pytest.approx(1.0)
    assert sign_test(4, 1) == pytest.approx((5 + 1) / 32)


def test_documents_for_a_rise():
    # 6 rises and no fall: z = 2.449; at 5 % and power 80 % z = 1.645 + 0.842 is wanted: 1.031 times as many.
    assert clusters_for_rise(6, 0, 50, ALPHA) == 52
    assert clusters_for_rise(6, 0, 50, ALPHA / 8) > 70
    assert clusters_for_rise(9, 3, 50, ALPHA) > clusters_for_rise(9, 0, 50, ALPHA)


def test_holm_by_hand():
    # 0.01 <= 0.05 / 4; 0.016 <= 0.05 / 3; 0.03 > 0.05 / 2 stops it.
    assert holm([0.03, 0.01, 0.04, 0.016], ALPHA) == [False, True, False, True]
    assert holm([], ALPHA) == []
    assert holm([0.05], ALPHA) == [True]


def test_holm_keeps_the_level_over_all_claims():
    generator = np.random.default_rng(0)
    false = sum(any(holm(list(generator.random(6)), ALPHA)) for _ in range(2000))
    assert false / 2000 <= 0.065
    assert sum(min(generator.random(6)) <= ALPHA for _ in range(2000)) / 2000 > 0.2  # each by itself


def test_share_that_may_be_unseen():
    assert unseen_share(59, ALPHA) == pytest.approx(0.0495, abs=5e-4)
    assert (1 - unseen_share(20, ALPHA)) ** 20 == pytest.approx(ALPHA)
