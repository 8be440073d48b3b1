"""1,000 random problems: every kind of budget, limits of kinds, times of a step, a scored cache.

Four small ones a seed are held against trying every plan, one large one against uniform plans and hand maps.
"""

import random
from fractions import Fraction

import pytest

from ocrquant.artifacts import GroupRecord
from ocrquant.assign import Terms, build_problem, hand_plans, narrow, solve, uniform_plan
from ocrquant.cost import TARGETS, Load, StepCost
from ocrquant.errors import BudgetError
from ocrquant.formats import Precision
from tests.assign.builders import random_scores, random_sizes, sensitivity_of, with_cache

BF16, FP8, NVFP4 = Precision.BF16, Precision.FP8, Precision.NVFP4
KINDS = ("gdn.qkvz", "mlp.gate_up", "mlp.down")


def random_case(rng, num_groups):
    """Scores, terms and a kind of budget; kinds, limits, times and a scored cache by chance."""
    scores = random_scores(rng, num_groups, with_ties=rng.random() < 0.2)
    sizes = random_sizes(rng, scores)
    sensitivity = sensitivity_of(scores, sizes=sizes)
    groups = [
        GroupRecord(**{**group.model_dump(), "kind": rng.choice(KINDS), "block": i})
        for i, group in enumerate(sensitivity.groups)
    ]
    sensitivity = sensitivity.model_copy(update={"groups": groups})
    if rng.random() < 0.5:
        sensitivity = with_cache(sensitivity, rng.lognormvariate(-8, 2), rng.randrange(64, 1024, 16))
    present = sorted({group.kind for group in groups})
    limits = {rng.choice(present): {rng.choice([FP8, NVFP4]): round(rng.uniform(0.2, 0.9), 2)}}
    load = Load(batch=rng.choice([1, 8, 512]), window=rng.choice([1, 16]), context=rng.choice([0, 500]))
    terms = Terms(
        step=StepCost(TARGETS[rng.choice(sorted(TARGETS))], load),
        kv_cache=rng.choice(["auto", "auto", "fp8", "bf16"]),
        counted_tokens=rng.choice([0, 300]),
        limits=limits if rng.random() < 0.4 else {},
        min_bits={rng.choice(present): rng.choice([5.0, 6.5])} if rng.random() < 0.2 else {},
    )
    return sensitivity, terms, rng.choice(["bits_per_weight", "weight_bytes", "max_kl", "step_us"])


FIELDS = {
    "bits_per_weight": ("loss", "bits"),
    "weight_bytes": ("loss", "weight_bytes"),
    "max_kl": ("weight_bytes", "loss"),
    "step_us": ("loss", "step_ns"),
}


def unit_of(problem, kind):
    return {
        "bits_per_weight": problem.bit / problem.num_weights,
        "weight_bytes": Fraction(1),
        "max_kl": problem.loss_step,
        "step_us": Fraction(1, 1000),
    }[kind]


def random_limit(rng, problem, resource):
    least, most = (
        sum(f(getattr(c, resource) for c in g.choices) for g in problem.groups) for f in (min, max)
    )
    return rng.randrange(least, most + 1)


def all_plans(problem):
    """Every plan with its totals, one after another."""
    plans = [{}]
    for group in problem.groups:
        plans = [plan | {group.name: choice.precision} for plan in plans for choice in group.choices]
    return plans


@pytest.mark.parametrize("seed", range(225))
def test_small_is_never_worse_than_trying_every_plan(seed):
    rng = random.Random(seed)
    for _ in range(4):
        sensitivity, terms, kind = random_case(rng, rng.randrange(2, 6))
        problem = build_problem(narrow(sensitivity, terms, kind), terms=terms)
        objective, resource = FIELDS[kind]
        value = float(random_limit(rng, problem, resource) * unit_of(problem, kind))
        limit = Fraction(repr(value)) / unit_of(problem, kind)
        if kind == "max_kl":
            limit = Fraction(value) / problem.loss_step
        best = min(
            (
                (getattr(totals, objective), getattr(totals, resource))
                for plan in all_plans(problem)
                if not problem.broken_limits(plan)
                and getattr(totals := problem.totals(plan), resource) <= limit
            ),
            default=None,
        )
        if best is None:
            with pytest.raises(BudgetError):
                solve(problem, kind, value)
            continue
        plan = solve(problem, kind, value)
        assert (getattr(plan.totals, objective), getattr(plan.totals, resource)) == best
        assert not problem.broken_limits(plan.precisions)


@pytest.mark.parametrize("seed", range(100))
def test_large_is_never_over_budget_nor_worse_than_uniform_or_hand(seed):
    rng = random.Random(1000 + seed)
    sensitivity, terms, kind = random_case(rng, rng.randrange(20, 60))
    open_to = narrow(sensitivity, terms, kind)
    problem = build_problem(open_to, terms=terms)
    others = [uniform_plan(open_to.groups, precision) for precision in (FP8, NVFP4)]
    others += hand_plans(open_to.groups).values()
    objective, resource = FIELDS[kind]
    for other in others:
        spent = getattr(problem.totals(other), resource)
        if problem.broken_limits(other) or not spent:
            continue
        unit = unit_of(problem, kind)
        value = float(spent * unit)
        try:
            plan = solve(problem, kind, value)
        except BudgetError:
            # A limit in the recipe's own unit may round to just below what the other plan spends.
            assert Fraction(repr(value)) < spent * unit
            continue
        assert getattr(plan.totals, resource) <= spent + 1
        assert not problem.broken_limits(plan.precisions)
        if getattr(plan.totals, resource) == spent or Fraction(repr(value)) >= spent * unit:
            assert getattr(plan.totals, objective) <= getattr(problem.totals(other), objective)
