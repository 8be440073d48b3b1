import random
from fractions import Fraction

import pytest

from ocrquant.artifacts import Sensitivity
from ocrquant.assign import build_problem, solve, uniform_plan
from ocrquant.assign import solve as solve_function
from ocrquant.assign.problem import Totals
from ocrquant.assign.solve import Plan, check_plan
from ocrquant.errors import ArtifactError, BudgetError
from ocrquant.formats import Precision
from tests.assign.builders import random_scores, random_sizes, sensitivity_of
from tests.assign.oracles import brute_force

BF16, FP8, NVFP4 = Precision.BF16, Precision.FP8, Precision.NVFP4
BITS = {BF16: 16, FP8: 8, NVFP4: Fraction(9, 2)}


def two_groups(**changes):
    return sensitivity_of({"a": {FP8: 1e-3, NVFP4: 5e-3}, "b": {FP8: 2e-3, NVFP4: 3e-3}}, **changes)


def exact_bits(sensitivity, plan):
    """Bits a weight as a fraction, from nothing but the group sizes."""
    total = sum(BITS[plan[group.name]] * group.num_weights for group in sensitivity.groups)
    return total / sum(group.num_weights for group in sensitivity.groups)


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (16, {"a": BF16, "b": BF16}),
        (12, {"a": BF16, "b": FP8}),  # 2 beside 1 the other way round, but b loses 2 and a 1
        (8, {"a": FP8, "b": FP8}),
        (6.25, {"a": FP8, "b": NVFP4}),
        (4.5, {"a": NVFP4, "b": NVFP4}),
    ],
)
def test_by_hand(budget, expected):
    scores = {"a": {FP8: 1e-3, NVFP4: 5e-3}, "b": {FP8: 0.5e-3, NVFP4: 3e-3}}
    assert solve(build_problem(sensitivity_of(scores)), "bits_per_weight", budget).precisions == expected


def test_max_kl_gives_fewest_bytes():
    problem = build_problem(two_groups())
    assert solve(problem, "max_kl", 8e-3).precisions == {"a": NVFP4, "b": NVFP4}
    # Equal bytes either way round; a in fp8 and b in nvfp4 loses less.
    assert solve(problem, "max_kl", 7e-3).precisions == {"a": FP8, "b": NVFP4}
    assert solve(problem, "max_kl", 4e-3).precisions == {"a": FP8, "b": NVFP4}
    assert solve(problem, "max_kl", 3.5e-3).precisions == {"a": FP8, "b": FP8}
    assert solve(problem, "max_kl", 1e-9).precisions == {"a": BF16, "b": BF16}


@pytest.mark.parametrize("seed", range(30))
def test_equals_brute_force_under_every_kind_of_budget(seed):
    rng = random.Random(seed)
    scores = random_scores(rng, rng.randrange(1, 6), with_ties=seed % 3 == 0)
    sizes = random_sizes(rng, scores)
    open_to = {name: rng.choice([[FP8], [BF16], [BF16, NVFP4], [FP8, NVFP4]]) for name in list(scores)[:1]}
    sensitivity = sensitivity_of(scores, sizes=sizes, open_to=open_to if seed % 2 else None)
    problem = build_problem(sensitivity)
    fields = {
        "bits_per_weight": ("loss", "bits"),
        "weight_bytes": ("loss", "weight_bytes"),
        "max_kl": ("weight_bytes", "loss"),
    }
    for kind, (objective, resource) in fields.items():
        items = [[(getattr(c, objective), getattr(c, resource)) for c in g.choices] for g in problem.groups]
        unit = {
            "bits_per_weight": problem.bit / problem.num_weights,
            "weight_bytes": 1,
            "max_kl": problem.loss_step,
        }[kind]
        least, most = (sum(f(r for _, r in group) for group in items) for f in (min, max))
        for _ in range(4):
            units = rng.randrange(least, most + 1)
            value = float(units * unit)
            limit = int(Fraction(repr(value)) / unit)
            best = brute_force(items, limit)
            if best is None:
                continue
            totals = solve(problem, kind, value).totals
            assert (getattr(totals, objective), getattr(totals, resource)) == best


@pytest.mark.parametrize("seed", range(5))
def test_large_is_never_over_budget_nor_worse_than_uniform(seed):
    rng = random.Random(seed)
    scores = random_scores(rng, 300)
    sensitivity = sensitivity_of(scores, sizes=random_sizes(rng, scores))
    problem = build_problem(sensitivity)
    for budget in (4.5, 4.6, 5.1, 6.1, 7.3, 8.0, 11.7):
        plan = solve(problem, "bits_per_weight", budget)
        assert exact_bits(sensitivity, plan.precisions) <= Fraction(str(budget))
        assert problem.bits_per_weight(plan.totals.bits) <= budget
        for precision in (FP8, NVFP4):
            uniform = uniform_plan(sensitivity.groups, precision)
            if exact_bits(sensitivity, uniform) <= Fraction(str(budget)):
                assert plan.totals.loss <= problem.totals(uniform).loss
    for limit in (1e-3, 1e-2, 0.1):
        assert problem.loss(solve(problem, "max_kl", limit).totals.loss) <= limit


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("with_ties", [False, True])
def test_order_of_the_file_decides_nothing(seed, with_ties):
    scores = random_scores(random.Random(seed), 60, with_ties=with_ties)
    plain, shuffled = (build_problem(sensitivity_of(scores, shuffle=order)) for order in (None, seed))
    for kind, value in (("bits_per_weight", 5.37), ("weight_bytes", 200_000), ("max_kl", 0.02)):
        assert solve(shuffled, kind, value) == solve(plain, kind, value)


def test_equal_scores_and_sizes_give_the_plan_of_fewest_bits():
    problem = build_problem(sensitivity_of({name: {FP8: 0.0, NVFP4: 0.0} for name in "cab"}))
    assert set(solve(problem, "bits_per_weight", 16).precisions.values()) == {NVFP4}


def test_score_below_zero_counts_as_zero():
    problem = build_problem(sensitivity_of({"a": {FP8: -1e-3, NVFP4: 1.0}, "b": {FP8: 1e-3, NVFP4: 2.0}}))
    plan = solve(problem, "bits_per_weight", 8)
    assert problem.loss(plan.totals.loss) == pytest.approx(1e-3)


def test_scores_are_rounded_up_by_less_than_their_noise():
    problem = build_problem(sensitivity_of({"a": {FP8: 1e-9, NVFP4: 1e-9 / 3}, "b": {FP8: 7.0, NVFP4: 0.1}}))
    for group, values in zip(problem.groups, ((1e-9, 1e-9 / 3), (7.0, 0.1)), strict=True):
        for choice, value in zip(group.choices[1:], values, strict=True):
            assert 0 <= choice.loss * problem.loss_step - Fraction(value) < Fraction(7) / 2**50


def test_group_with_one_choice_keeps_it():
    sensitivity = two_groups(open_to={"a": [FP8]})
    problem = build_problem(sensitivity)
    assert solve(problem, "bits_per_weight", 16).precisions == {"a": FP8, "b": BF16}
    assert solve(problem, "bits_per_weight", 6.25).precisions == {"a": FP8, "b": NVFP4}


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("bits_per_weight", 6.2, "bits_per_weight: expected at least 6.25, over 2 groups .*, got 6.2; raise"),
        (
            "weight_bytes",
            10,
            f"weight_bytes: expected at least {64 * 64 + 64 * 4 + 64 * 64 * 9 // 16 + 4}, .*got 10;",
        ),
        ("max_kl", 9e-4, r"max_kl: expected at least 0\.001\d*, which .*has 0\.004\d*\), .*got 0\.0009;"),
    ],
)
def test_unreachable_budget_is_refused_with_what_can_be_reached(kind, value, message):
    problem = build_problem(two_groups(open_to={"a": [FP8]}))
    with pytest.raises(BudgetError, match=message) as caught:
        solve(problem, kind, value)
    assert "\n" not in str(caught.value)
    stated = float(str(caught.value).split("at least ")[1].split(",")[0])
    solve(problem, kind, stated)  # what is stated can be reached


def test_stated_minimum_is_rounded_up():
    scores = {"a": {FP8: 1e-3}, "b": {FP8: 1e-3, NVFP4: 3e-3}}
    sensitivity = sensitivity_of(scores, sizes={"a": (16, 48), "b": (16, 1008)})
    with pytest.raises(BudgetError) as caught:
        solve(build_problem(sensitivity), "bits_per_weight", 4.0)
    stated = float(str(caught.value).split("at least ")[1].split(",")[0])
    exact = (8 * 48 + 4.5 * 1008) / (48 + 1008)
    assert exact < stated < exact + 1e-4


def test_missing_score_is_named():
    sensitivity = two_groups()
    rows = [row for row in sensitivity.rows if (row.group, row.precision) != ("b", NVFP4)]
    with pytest.raises(ArtifactError, match=r"sensitivity\.json: group b: expected a kl score in nvfp4"):
        build_problem(Sensitivity(inputs={}, groups=sensitivity.groups, rows=rows))


def test_measured_kl_comes_before_the_gradient():
    kl, gradient = two_groups(), two_groups(score="gradient")
    both = Sensitivity(inputs={}, groups=kl.groups, rows=[*gradient.rows, *kl.rows])
    assert build_problem(both).score == "kl"
    assert build_problem(gradient).score == "gradient"


def test_uniform_plan_goes_up_where_it_must():
    groups = two_groups(open_to={"a": [BF16, FP8], "b": [NVFP4]}).groups
    assert uniform_plan(groups, NVFP4) == {"a": FP8, "b": NVFP4}
    assert uniform_plan(groups, FP8) == {"a": FP8, "b": NVFP4}


def test_planted_faults_are_found():
    problem = build_problem(two_groups())
    plan = solve(problem, "bits_per_weight", 6.25)
    limit = plan.totals.bits
    check_plan(problem, plan, "bits_per_weight", limit, {})
    with pytest.raises(AssertionError, match="the plan takes"):
        check_plan(problem, plan, "bits_per_weight", limit - 1, {})
    worse = {"a": NVFP4, "b": FP8}
    with pytest.raises(AssertionError, match="worse than hand"):
        check_plan(
            problem, Plan(worse, problem.totals(worse)), "bits_per_weight", limit, {"hand": plan.precisions}
        )
    with pytest.raises(AssertionError, match="sums"):
        check_plan(problem, Plan(worse, Totals(0, 0, 0)), "bits_per_weight", limit, {})


def test_given_plans_are_checked(monkeypatch):
    problem = build_problem(two_groups())
    assert solve(problem, "bits_per_weight", 6.25, baselines={"hand": {"a": NVFP4, "b": FP8}})
    module = __import__(solve_function.__module__, fromlist=["solve"])
    monkeypatch.setattr(
        module, "selected_plan", lambda p, s: Plan(x := {"a": NVFP4, "b": NVFP4}, problem.totals(x))
    )
    with pytest.raises(AssertionError, match="worse than hand"):
        solve(problem, "bits_per_weight", 6.25, baselines={"hand": {"a": NVFP4, "b": FP8}})
