"""Swaps on whole plans with a judge that knows the truth."""

import pytest

from ocrquant.assign import Terms, build_problem, choose_formats, repair
from ocrquant.assign.swaps import Ceiling, nearby_plans
from ocrquant.formats import Precision
from ocrquant.recipe.sections import Budget
from tests.assign.builders import sensitivity_of, with_cache

BF16, FP8, NVFP4 = Precision.BF16, Precision.FP8, Precision.NVFP4
TOKENS = [10, 20, 30, 40, 50, 50]
SCORES = {
    "a": {FP8: 1e-4, NVFP4: 1.0e-3},
    "b": {FP8: 1e-4, NVFP4: 1.1e-3},
    "c": {FP8: 1e-4, NVFP4: 1.2e-3},
    "d": {FP8: 1e-4, NVFP4: 9e-3},
}


class Judge:
    """Sums of scores, plus what interacts; the same scatter over pages for every plan, and some of its own.

    Attributes:
        calls: Plans that were asked for.
    """

    def __init__(self, scores, extra=lambda groups: 0.0, jitter=0.0):
        self._scores, self._extra, self._jitter, self.calls = scores, extra, jitter, []

    def __call__(self, groups, kv_cache="bf16"):
        self.calls.append((dict(groups), kv_cache))
        mean = sum(self._scores[name].get(precision, 0.0) for name, precision in groups.items())
        mean += self._extra(groups)
        noise = [-1, -1, -1, -1, 1, 1]  # as many tokens above the mean as below it
        wobble = self._jitter * len(self.calls)
        return [
            (count * mean * (1 + 0.3 * sign) + count * wobble * sign, count)
            for count, sign in zip(TOKENS, noise, strict=True)
        ]


def together(first, second, loss):
    """A loss that two groups have only when both are in nvfp4."""
    return lambda groups: loss if groups[first] is groups[second] is NVFP4 else 0.0


def repaired(judge, max_measurements=20, scores=SCORES):
    return choose_formats(
        sensitivity_of(scores),
        Budget(bits_per_weight=6.25),
        {},
        judge=judge,
        max_measurements=max_measurements,
    )


def test_a_pair_that_suffers_together_is_taken_apart():
    judge = Judge(SCORES, together("a", "b", 0.01))
    plain = choose_formats(sensitivity_of(SCORES), Budget(bits_per_weight=6.25), {})
    assert plain.groups == {"a": NVFP4, "b": NVFP4, "c": FP8, "d": FP8}
    plan = repaired(judge)
    assert plan.groups == {"a": NVFP4, "b": FP8, "c": NVFP4, "d": FP8}
    assert plan.bits_per_weight <= 6.25
    record = plan.repair
    assert record.before.predicted == pytest.approx(plain.predicted_loss)
    assert record.before.measured == pytest.approx(0.0123)  # 1.0 + 1.1 + 0.1 + 0.1 + 10 thousandths
    assert record.after.predicted == pytest.approx(plan.predicted_loss) == pytest.approx(2.4e-3)
    assert record.after.measured == pytest.approx(2.4e-3)
    assert record.num_measurements == len(judge.calls) == len(record.swaps) + 1
    assert (record.num_pages, record.num_tokens) == (6, 200)
    kept = [swap for swap in record.swaps if swap.is_kept]
    assert kept[-1].measured < 0
    assert all(swap.measured < -1.645 * swap.standard_error for swap in kept)


def test_sums_that_are_true_are_left_alone():
    plan = repaired(Judge(SCORES))
    assert plan.groups == {"a": NVFP4, "b": NVFP4, "c": FP8, "d": FP8}
    assert not any(swap.is_kept for swap in plan.repair.swaps)
    assert plan.repair.before == plan.repair.after


def test_a_fall_within_the_noise_is_not_taken():
    # The pair costs a little together, far less than what differs between pages from plan to plan.
    quiet, noisy = (Judge(SCORES, together("a", "b", 5e-4), jitter) for jitter in (0.0, 0.05))
    assert any(swap.is_kept for swap in repaired(quiet).repair.swaps)
    assert not any(swap.is_kept for swap in repaired(noisy).repair.swaps)


def test_many_tries_ask_for_more_and_so_does_a_page_that_loses():
    problem = build_problem(sensitivity_of(SCORES))
    plan = {"a": NVFP4, "b": NVFP4, "c": FP8, "d": FP8}
    ceiling = Ceiling("bits", problem.totals(plan).bits)

    def fallen(changes, max_measurements):
        """Whether the first swap is kept, and its t, where other plans lose less by so much on each page."""

        def judge(groups, kv_cache="bf16"):
            return [(10.0 if groups == plan else 10.0 - change, 10) for change in changes]

        swaps = repair(problem, plan, ceiling, judge, max_measurements=max_measurements).record.swaps
        return swaps[0].is_kept, swaps[0].measured / swaps[0].standard_error

    # Mean 0.4 of standard deviation 0.4472 over 10 pages: t = 2.83 with 9 degrees of freedom, p = 0.0099.
    even = [0.4 + 0.4243 * sign for sign in (-1, 1)] * 5
    assert fallen(even, 2) == (True, pytest.approx(-2.83, abs=0.01))
    assert fallen(even, 6)[0] is True  # 0.05 / 5 = 0.01
    assert fallen(even, 7)[0] is False  # 0.05 / 6 = 0.0083
    # Nine pages gain, one loses: t = 2.33 of 1.83 would do, were it not for what another such page may lose.
    assert fallen([*[0.2] * 9, -0.4], 2) == (False, pytest.approx(-2.33, abs=0.01))


def test_never_more_measurements_than_allowed():
    for most in (1, 2, 5):
        judge = Judge(SCORES, together("a", "b", 0.01))
        record = repaired(judge, most).repair
        assert len(judge.calls) == record.num_measurements <= most


def test_no_plan_is_measured_twice_and_a_move_in_vain_is_given_up():
    judge = Judge(SCORES)
    swaps = repaired(judge, 100).repair.swaps
    plans = [tuple(sorted(groups.items())) for groups, _ in judge.calls]
    assert len(set(plans)) == len(plans)
    moves = [(name, new) for swap in swaps for name, (_, new) in swap.groups.items()]
    assert max(moves.count(move) for move in moves) <= 2


def test_same_plan_again_from_what_was_written_down():
    judge = Judge(SCORES, together("a", "b", 0.01))
    first = repaired(judge)
    known = {}

    def replayed(groups, kv_cache="bf16"):
        key = tuple(sorted(groups.items()))
        if key not in known:
            known[key] = Judge(SCORES, together("a", "b", 0.01))(groups, kv_cache)
        return known[key]

    assert repaired(replayed).render() == first.render()
    assert repaired(replayed).render() == first.render()


def test_budget_and_limits_hold_on_the_way():
    scores = SCORES | {f"x{i}": {FP8: 2e-4, NVFP4: 1.5e-3 + i * 1e-5} for i in range(6)}
    judge = Judge(scores, lambda groups: 1e-3 * sum(p is NVFP4 for p in groups.values()) ** 2)
    problem = build_problem(sensitivity_of(scores), terms=Terms())
    plan = choose_formats(
        sensitivity_of(scores), Budget(weight_bytes=30_000), {}, judge=judge, max_measurements=30
    )
    assert plan.weight_bytes <= 30_000
    for groups, _ in judge.calls:
        assert problem.totals(groups).weight_bytes <= 30_000


def test_cache_can_be_swapped_too():
    sensitivity = with_cache(sensitivity_of(SCORES), 5e-4)
    terms = Terms(kv_cache="auto", counted_tokens=10)
    # 20,480 bytes of keys and values in bf16, half in fp8, which four weights in fp8 make room for.
    budget = Budget(weight_bytes=4 * (4096 + 256) + 20_480)
    judge = Judge(SCORES)
    plan = choose_formats(sensitivity, budget, {}, terms=terms, judge=judge, max_measurements=9)
    assert {cache for _, cache in judge.calls} == {"bf16", "fp8"}
    assert plan.kv_bytes in (10_240, 20_480)
    assert plan.weight_bytes + plan.kv_bytes <= budget.weight_bytes


def test_nearby_plans_are_ranked_by_expected_gain():
    problem = build_problem(sensitivity_of(SCORES))
    plan = {"a": NVFP4, "b": NVFP4, "c": FP8, "d": FP8}
    ceiling = Ceiling("bits", problem.totals(plan).bits)
    nearby = nearby_plans(problem, plan, ceiling)
    gains = [near.expected_gain for near in nearby]
    assert gains == sorted(gains, reverse=True)
    # b and c differ least: (1.2 + 0.1) - (1.1 + 0.1) thousandths, errors of a tenth of each score.
    best = next(near for near in nearby if {m.group for m in near.moves} == {"b", "c"})
    assert best.predicted == pytest.approx(1e-4)
    assert best.noise == pytest.approx((1.1e-4**2 + 1e-5**2 + 1e-5**2 + 1.2e-4**2) ** 0.5)
    for near in nearby:
        assert problem.totals(near.apply(plan)).bits <= ceiling.limit
    through = nearby_plans(problem, plan, ceiling, through="d")
    assert through
    assert all("d" in {move.group for move in near.moves} for near in through)


def test_exact_scores_speak_for_no_swap():
    scores = {name: {FP8: 0.0, NVFP4: 0.0} for name in "ab"}
    problem = build_problem(sensitivity_of(scores))
    judge = Judge(scores)
    found = repair(problem, {"a": NVFP4, "b": NVFP4}, Ceiling("bits", 10**9), judge, max_measurements=10)
    assert len(judge.calls) == 1
    assert found.precisions == {"a": NVFP4, "b": NVFP4}
