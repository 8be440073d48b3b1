"""Windows by acceptance and cost: against a search by hand, on a synthetic table, and when things change."""

import numpy as np
import pytest

from ocrquant.engine.step_times import LearnedTimes, StepTime
from ocrquant.engine.window_policy import (
    RETRY_STEPS,
    AcceptanceByPosition,
    FixedWindow,
    MeasuredWindow,
    candidates,
)


class Table:
    """A step costs a part for all, a part for each row, and one for drafting."""

    def __init__(self, base=500.0, row=20.0, draft=100.0):
        self.base, self.row, self.draft = base, row, draft

    def step_us(self, requests, window):
        rows = requests * window
        return self.base + self.row * rows + (self.draft + rows if window > 1 else 0.0)

    def note(self, time):
        pass


def seen(policy, requests, steps, chance, times, rng, noise=0.0):
    """Windows that a policy chose while drafts are accepted with a chance each."""
    chosen = []
    for _ in range(steps):
        window = policy.rows(requests)
        chosen.append(window)
        wrong = rng.random((requests, window)) >= chance
        accepted = [int(min(np.argmax(row) if row.any() else window, window - 1)) for row in wrong]
        total = times.step_us(requests, window) * (1 + noise * rng.random())
        draft = times.draft + requests * window if window > 1 else 0.0
        host = 10.0
        policy.note(
            StepTime(requests, window, draft, total - draft - host, host), accepted if window > 1 else ()
        )
    return chosen


def best_by_hand(chance, times, requests, most):
    def rate(window):
        tokens = sum(chance**j for j in range(window))
        return tokens / times.step_us(requests, window)

    return max(candidates(most), key=rate)


def test_acceptance_by_hand():
    found = AcceptanceByPosition(3, prior=[0.5, 0.25])
    assert found.survival(3) == pytest.approx([0.5, 0.25, 0.125])
    assert found.tokens(1) == 1.0
    assert found.tokens(4) == pytest.approx(1.875)
    # One window of three drafts, the first right: four windows of a prior and one, a little less of the old.
    found.note(3, 1)
    one, two = (0.98 * 2 + 1) / (0.98 * 4 + 1), (0.98 * 2 + 0) / (0.98 * 4 + 1)
    assert found.survival(3) == pytest.approx([one, one * two, one * two * 0.5])


def test_short_windows_say_nothing_of_later_drafts():
    found = AcceptanceByPosition(4, prior=[0.9] * 4)
    for _ in range(500):
        found.note(1, 1)
    assert found.survival(4)[0] > 0.99
    assert found.survival(4)[1] == pytest.approx(found.survival(4)[0])
    for _ in range(500):
        found.note(4, 2)
    survival = found.survival(4)
    assert survival[1] > 0.99
    assert survival[2] < 0.01


@pytest.mark.parametrize("chance", [0.3, 0.7, 0.9, 0.98])
@pytest.mark.parametrize("requests", [1, 4, 16])
def test_the_window_of_a_known_table_is_the_best_one(chance, requests):
    times, rng = Table(), np.random.default_rng(0)
    policy = MeasuredWindow(16, times, prior=[chance**j for j in range(1, 16)])
    wanted = best_by_hand(chance, times, requests, 16)
    chosen = seen(policy, requests, 40, chance, times, rng)
    rates = [policy.rate(requests, w) for w in (wanted, chosen[-1])]
    assert rates[1] > 0.9 * rates[0]


def test_windows_shrink_as_the_batch_grows():
    policy = MeasuredWindow(16, Table(row=30.0), prior=[0.85**j for j in range(1, 16)])
    chosen = [policy.rows(requests) for requests in (1, 4, 16, 64)]
    assert chosen == sorted(chosen, reverse=True)
    assert chosen[0] >= 8
    assert chosen[-1] < chosen[0]


def test_drafts_that_do_not_pay_are_switched_off_and_tried_again():
    times, rng = Table(), np.random.default_rng(1)
    policy = MeasuredWindow(16)
    chosen = seen(policy, 8, 3 * RETRY_STEPS, 0.05, times, rng)
    late = chosen[RETRY_STEPS:]
    assert late.count(1) > 0.9 * len(late)
    assert max(late) > 1, "nobody tried again"
    # Pages that are easier: drafts pay again, and that is noticed.
    assert np.median(seen(policy, 8, 6 * RETRY_STEPS, 0.97, times, rng)[-RETRY_STEPS:]) >= 4


@pytest.mark.parametrize("chance", [0.5, 0.8, 0.95])
@pytest.mark.parametrize("requests", [1, 8])
def test_learned_times_lead_near_the_best_window(chance, requests):
    times, rng = Table(), np.random.default_rng(2)
    policy = MeasuredWindow(16)
    chosen = seen(policy, requests, 500, chance, times, rng, noise=0.2)[200:]
    wanted = best_by_hand(chance, times, requests, 16)

    def rate(window):
        return sum(chance**j for j in range(window)) / times.step_us(requests, window)

    assert np.mean([rate(window) for window in chosen]) > 0.9 * rate(wanted)


def test_times_are_learned_by_hand():
    times = LearnedTimes()
    assert times.step_us(1, 4) is None
    times.note(StepTime(1, 4, 100.0, 9000.0, 10.0))  # recorded then
    assert times.step_us(1, 4) is None
    times.note(StepTime(1, 4, 100.0, 400.0, 10.0))
    assert times.step_us(1, 4) == pytest.approx(510)
    # One row: at least half of what four take, an eighth more for the row; no drafter.
    assert times.step_us(1, 1) == pytest.approx(400 * 0.625 + 10)
    # Eight: what is known nearest by.
    assert times.step_us(1, 8) == pytest.approx(510)
    # A time far out counts as one and a half averages.
    times.note(StepTime(1, 4, 100.0, 40000.0, 10.0))
    assert times.step_us(1, 4) == pytest.approx(400 + 0.1 * 200 + 110)
    for _ in range(2):
        times.note(StepTime(2, 4, 140.0, 800.0, 14.0))
    # Six rows lie between four and eight.
    assert times.step_us(2, 3) == pytest.approx((420 + 800) / 2 + (100 + 140) / 2 + 14)


def test_candidates_are_few_and_hold_the_longest():
    assert candidates(1) == (1,)
    assert candidates(5) == (1, 2, 3, 4, 5)
    assert candidates(16) == (1, 2, 3, 4, 6, 8, 12, 16)


def test_single_rows_are_tried_early():
    times, rng = Table(), np.random.default_rng(3)
    chosen = seen(MeasuredWindow(8), 1, 40, 0.95, times, rng)
    assert chosen[15:18] == [1, 1, 1]
    assert chosen.count(1) == 3


def test_a_fixed_window_stays():
    policy = FixedWindow(5)
    policy.note(StepTime(1, 5, 1.0, 1.0, 1.0), [0])
    assert policy.rows(100) == 5
