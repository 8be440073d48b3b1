"""What every size would cost: the exact plans between the smallest one and the one of least loss.

Knows the solver. Does not know which budget was asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ocrquant.artifacts import ParetoPoint
from ocrquant.assign.problem import Problem
from ocrquant.assign.solve import Plan, selected_plan, size_knapsack
from ocrquant.assign.terms import KV_CACHE
from ocrquant.formats import FORMATS, Precision

__all__ = ["is_on_front", "pareto_front", "pareto_point"]

NUM_STEPS = 400
"""Two points lie at least one part in so many of the range of sizes apart, and none further than they must:
0.03 bits where bf16 is open everywhere."""


_NUM_LIMITED_STEPS = 40


def pareto_front(problem: Problem, *, num_steps: int | None = None) -> list[Plan]:
    """Plans that no other plan beats in both bytes and loss, smallest first, both ends included.

    Each is exact: the best one for its size. Beginning at the largest plan, the next one is the best at least
    one step smaller, so that a plan left out lies within a step below one that is in.

    Args:
        problem: Groups and choices.
        num_steps: How many steps the range of sizes has; a large number gives every plan there is. With
            limits of kinds a plan takes up to a second, and there are 40 by default.

    Raises:
        BudgetError: No plan keeps the limits of kinds.
    """
    knapsack = size_knapsack(problem)
    num_steps = num_steps or (_NUM_LIMITED_STEPS if problem.rows else NUM_STEPS)
    least, most = knapsack.least_resource, knapsack.most_resource
    step = max(1, (most - least) // num_steps)
    plans: list[Plan] = []
    limit = most
    while (selection := knapsack.best(limit)) is not None:
        while plans and plans[-1].totals.loss >= selection.objective:
            plans.pop()  # only after a search that was stopped
        plans.append(selected_plan(problem, selection))
        at_end = selection.resource == least
        limit = least - 1 if at_end else max(least, selection.resource - step)
    return plans[::-1]


def pareto_point(problem: Problem, precisions: Mapping[str, Precision], name: str = "") -> ParetoPoint:
    """A plan as a point beside others.

    Args:
        problem: Groups and choices.
        precisions: The plan.
        name: See `ParetoPoint`.
    """
    totals = problem.totals(precisions)
    count = Counter(precision for group, precision in precisions.items() if group != KV_CACHE)
    return ParetoPoint(
        name=name,
        bits_per_weight=problem.bits_per_weight(totals.bits),
        weight_bytes=totals.weight_bytes,
        predicted_loss=problem.loss(totals.loss),
        num_groups={precision: count[precision] for precision in FORMATS if count[precision]},
    )


def is_on_front(problem: Problem, plan: Plan) -> bool:
    """Whether no plan beats this one in bytes and loss."""
    best = size_knapsack(problem).best(plan.totals.weight_bytes)
    assert best is not None, "the plan itself fits"
    return (best.objective, best.resource) == (plan.totals.loss, plan.totals.weight_bytes)
