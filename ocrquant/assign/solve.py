"""From a budget to the best plan within it, checked in whole numbers before anybody sees it.

Knows what a budget limits. Does not know where plans are stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal
from fractions import Fraction
from math import floor, ulp

from ocrquant.artifacts.assignment import BudgetKind
from ocrquant.assign.knapsack import Item, Selection
from ocrquant.assign.problem import Problem, Totals
from ocrquant.assign.terms import KV_CACHE
from ocrquant.assign.ties import TiedSolver
from ocrquant.errors import BudgetError
from ocrquant.formats import Precision

__all__ = [
    "Plan",
    "budget_limit",
    "budget_resource",
    "check_plan",
    "selected_plan",
    "size_knapsack",
    "solve",
]

Precisions = Mapping[str, Precision]

_SHOWN_DIGITS = 6


@dataclass(frozen=True, slots=True)
class Plan:
    """A format for every group.

    Attributes:
        precisions: Format by group, sorted by name, and that of keys and values where their cache is scored.
        totals: Its sums.
        gap: Proven bound on how much better the best plan could be, in loss grid steps or, for ``max_kl``, in
            bytes. 0 except in contrived cases, see `Selection.gap`; with limits of kinds a few parts in 10^9.
    """

    precisions: dict[str, Precision]
    totals: Totals
    gap: int = 0


@dataclass(frozen=True, slots=True)
class _Budget:
    """What one kind of budget limits and what is made small within it: names of fields of `Choice`."""

    resource: str
    objective: str


_BUDGETS: Mapping[BudgetKind, _Budget] = {
    "bits_per_weight": _Budget("bits", "loss"),
    "weight_bytes": _Budget("weight_bytes", "loss"),
    "max_kl": _Budget("loss", "weight_bytes"),
    "step_us": _Budget("step_ns", "loss"),
}
_LIMITS = "assign.limits and assign.min_bits"


def solve(
    problem: Problem, kind: BudgetKind, value: float, *, baselines: Mapping[str, Precisions] | None = None
) -> Plan:
    """The best plan within a budget.

    ``bits_per_weight`` and ``weight_bytes``: the least sum of scores, and of equal ones the smallest plan.
    ``step_us``: the least sum of scores, and of equal ones the quickest plan.
    ``max_kl``: the fewest bytes, and of equal ones the least sum. The same plan on any machine.

    Bits are the nominal ones of `ocrquant.formats.FORMATS`: block scales are counted (nvfp4 is 4.5), scales
    of a tensor or channel are not; bytes are exact and count them all.

    Args:
        problem: Groups and choices.
        kind: What is limited.
        value: The limit; 6.1 bits or bytes are 61/10 exactly, a KL is compared as a float.
        baselines: Other plans by name; the plan is checked to be no worse than any of them that fits.

    Raises:
        BudgetError: No plan fits; the message states what can be reached.
    """
    budget = _BUDGETS[kind]
    limit = budget_limit(problem, kind, value)
    solver = _solver(problem, budget)
    selection = solver.best(limit)
    if selection is None:
        raise _unreachable(problem, kind, value, solver)
    plan = selected_plan(problem, selection)
    if plan.gap and problem.rows:
        plan = _best_of(problem, plan, budget, limit, baselines or {})
    check_plan(problem, plan, kind, limit, baselines or {})
    return plan


def _best_of(
    problem: Problem, plan: Plan, budget: _Budget, limit: int, baselines: Mapping[str, Precisions]
) -> Plan:
    """The plan of a search that was stopped, or a baseline that fits and is better."""
    for precisions in baselines.values():
        totals = problem.totals(precisions)
        gain = getattr(plan.totals, budget.objective) - getattr(totals, budget.objective)
        is_fitting = getattr(totals, budget.resource) <= limit and not problem.broken_limits(precisions)
        if is_fitting and gain > 0:
            plan = Plan(dict(sorted(precisions.items())), totals, max(0, plan.gap - gain))
    return plan


def size_knapsack(problem: Problem) -> TiedSolver:
    """The knapsack of loss against bytes, for many limits at once.

    Raises:
        BudgetError: No plan keeps the limits of kinds.
    """
    return _solver(problem, _BUDGETS["weight_bytes"])


def budget_resource(kind: BudgetKind) -> str:
    """The field of `Choice` and `Totals` that a budget limits."""
    return _BUDGETS[kind].resource


def selected_plan(problem: Problem, selection: Selection) -> Plan:
    """A selection by name."""
    chosen = zip(problem.groups, selection.chosen, strict=True)
    precisions = {group.name: group.choices[index].precision for group, index in chosen}
    return Plan(precisions, problem.totals(precisions), selection.gap)


def check_plan(
    problem: Problem, plan: Plan, kind: BudgetKind, limit: int, baselines: Mapping[str, Precisions]
) -> None:
    """Checks that a plan fits and that no baseline that fits is better.

    Args:
        problem: Groups and choices.
        plan: The plan.
        kind: What is limited.
        limit: The limit in whole units.
        baselines: Other plans by name.

    Raises:
        AssertionError: It does not, or one is: the solver is wrong.
    """
    budget = _BUDGETS[kind]
    totals = problem.totals(plan.precisions)
    assert totals == plan.totals, "the sums are those of the plan"
    spent, reached = getattr(totals, budget.resource), getattr(totals, budget.objective)
    assert spent <= limit, f"the plan takes {spent} of {limit} units of {kind}"
    broken = problem.broken_limits(plan.precisions)
    assert not broken, f"the plan exceeds {', '.join(broken)}"
    for name, precisions in baselines.items():
        other = problem.totals(precisions)
        if getattr(other, budget.resource) <= limit and not problem.broken_limits(precisions):
            least = getattr(other, budget.objective)
            assert reached <= least, f"the plan is worse than {name}: {reached} > {least} {budget.objective}"


def _solver(problem: Problem, budget: _Budget) -> TiedSolver:
    def item(group: int, choice: int) -> Item:
        found = problem.groups[group].choices[choice]
        return getattr(found, budget.objective), getattr(found, budget.resource)

    solver = TiedSolver.of(problem.groups, item, problem.rows)
    if solver is None:
        raise BudgetError(
            "search and assign",
            expected="a format that is open to all experts of a layer",
            given="none, for some layer",
            fix="force and forbid the same for experts.gate_up and experts.down",
        )
    if not solver.is_possible:
        raise BudgetError(
            _LIMITS,
            expected="limits that some plan keeps",
            given=", ".join(row.name for row in problem.rows),
            fix="raise a share, lower a number of bits, or force and forbid less",
        )
    return solver


def _unit(problem: Problem, kind: BudgetKind) -> Fraction:
    """What a whole unit of the limited sum is worth in the budget's own unit."""
    return {
        "bits_per_weight": problem.bit / problem.num_weights,
        "weight_bytes": Fraction(1),
        "max_kl": problem.loss_step,
        "step_us": Fraction(1, 1000),
    }[kind]


def budget_limit(problem: Problem, kind: BudgetKind, value: float) -> int:
    """A budget in whole units of the sum that it limits."""
    if kind == "max_kl":
        # Sums are reported as floats: what is reported as `value` is within it.
        return floor((Fraction(value) + Fraction(ulp(value)) / 2) / _unit(problem, kind))
    # Through the shortest decimal: 6.1 means 61/10, not the float below it, which a plan of 6.1 would exceed.
    return floor(Fraction(repr(value)) / _unit(problem, kind))


def _unreachable(problem: Problem, kind: BudgetKind, value: float, solver: TiedSolver) -> BudgetError:
    unit = _unit(problem, kind)
    expected = f"at least {_shown(solver.least_resource * unit)}"
    if kind == "max_kl":
        most = _shown(solver.most_resource * unit)
        expected += f", which forced formats cost at best (the smallest plan has {most})"
    # Keys and values are decided among the groups, but are none of the model's.
    num_groups = sum(group.name != KV_CACHE for group in problem.groups)
    return BudgetError(
        f"assign.budget.{kind}",
        expected=f"{expected}, over {num_groups} groups with what search leaves open to them",
        given=_plain(value),
        fix="raise the budget, or settle fewer groups in search and assign",
    )


def _shown(value: Fraction) -> str:
    """A reachable limit in a few digits: rounded up, so that it is reachable too."""
    if value.denominator == 1:
        return str(value.numerator)
    rounding = Context(prec=_SHOWN_DIGITS, rounding=ROUND_CEILING)
    return _plain(float(rounding.divide(Decimal(value.numerator), Decimal(value.denominator))))


def _plain(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
