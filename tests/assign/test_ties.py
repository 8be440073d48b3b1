"""The experts of a layer take one format, whatever is solved and however."""

from __future__ import annotations

import random
from itertools import product

import pytest

from ocrquant.assign import Terms, build_problem, choose_formats, pareto
from ocrquant.assign.solve import solve
from ocrquant.assign.swaps import Ceiling, nearby_plans
from ocrquant.assign.ties import tied_groups, torn_groups
from ocrquant.errors import BudgetError
from ocrquant.formats import Precision
from ocrquant.recipe.sections import Budget
from tests.assign.builders import random_sizes, sensitivity_of

BF16, FP8, NVFP4 = Precision.BF16, Precision.FP8, Precision.NVFP4
EXPERTS = ("experts.gate_up", "experts.down")
NAMES = [f"layers.{block}.{part}" for block in range(2) for part in (*EXPERTS, "shared.down")]


def scored(seed, **options):
    """Two sparse layers with random scores."""
    rng = random.Random(seed)
    scores = {n: {FP8: rng.lognormvariate(-8, 1), NVFP4: rng.lognormvariate(-6, 1.5)} for n in NAMES}
    found = sensitivity_of(scores, sizes=random_sizes(rng, NAMES), **options)
    groups = [group.model_copy(update={"kind": group.name.split(".", 2)[2]}) for group in found.groups]
    return found.model_copy(update={"groups": groups})


def is_whole(plan):
    return all(len({plan[f"layers.{block}.{part}"] for part in EXPERTS}) == 1 for block in range(2))


def test_which_groups_are_tied():
    groups = build_problem(scored(0)).groups
    tied = [{groups[index].name for index in unit} for unit in tied_groups(groups)]
    assert [unit for unit in tied if len(unit) > 1] == [
        {f"layers.{block}.{part}" for part in EXPERTS} for block in range(2)
    ]
    plan = dict.fromkeys(NAMES, FP8)
    assert torn_groups(groups, plan) == []
    assert len(torn_groups(groups, plan | {"layers.1.experts.down": BF16})) == 1


@pytest.mark.parametrize("limits", [{}, {"shared.down": {NVFP4: 0.5}}])
@pytest.mark.parametrize("seed", range(4))
def test_equals_brute_force_over_whole_plans(seed, limits):
    problem = build_problem(scored(seed), terms=Terms(limits=limits))
    plans = [dict(zip(NAMES, chosen, strict=True)) for chosen in product((BF16, FP8, NVFP4), repeat=6)]
    whole = [plan for plan in plans if not problem.broken_limits(plan)]
    assert len(whole) < len([plan for plan in plans if is_whole(plan)]) + bool(not limits)
    assert all(is_whole(plan) for plan in whole)
    for bits in (8.0, 9.5, 12.0):
        fitting = [problem.totals(plan) for plan in whole]
        limit = bits * problem.num_weights / problem.bit
        best = min(totals.loss for totals in fitting if totals.bits <= limit)
        found = solve(problem, "bits_per_weight", bits)
        assert found.totals.loss - found.gap <= best <= found.totals.loss
        assert is_whole(found.precisions)


def test_every_plan_of_the_front_and_near_it_is_whole():
    sensitivity = scored(1)
    plan = choose_formats(sensitivity, Budget(bits_per_weight=7), {})
    assert is_whole(plan.groups)
    assert all(point.num_groups for point in pareto(sensitivity, plan, {}).front)
    problem = build_problem(sensitivity)
    near = nearby_plans(problem, plan.groups, Ceiling("bits", problem.totals(plan.groups).bits))
    assert all(is_whole(one.apply(plan.groups)) for one in near)


def test_experts_without_a_format_in_common():
    open_to = {"layers.0.experts.gate_up": [NVFP4], "layers.0.experts.down": [BF16, FP8]}
    with pytest.raises(BudgetError, match="open to all experts of a layer"):
        choose_formats(scored(2, open_to=open_to), Budget(bits_per_weight=16), {})
