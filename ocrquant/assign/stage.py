"""The stage that turns scores and a budget into ``assignment.yaml``, with ``pareto.json`` beside it.

Needs no model and no pages, unless the plan is to be repaired: then a judge is handed in. Another budget
costs milliseconds and no new measurement.
"""

from __future__ import annotations

from collections.abc import Mapping

from ocrquant.artifacts import Assignment, GroupRecord, Pareto, ParetoPoint, RunFolder, Sensitivity
from ocrquant.artifacts.assignment import BudgetKind, CachePrecision, RepairRecord
from ocrquant.assign.build import build_problem
from ocrquant.assign.front import is_on_front, pareto_front, pareto_point
from ocrquant.assign.hand_maps import hand_plans
from ocrquant.assign.narrow import narrow
from ocrquant.assign.problem import Problem, plan_score, uniform_plan
from ocrquant.assign.repair import Judge, repair
from ocrquant.assign.solve import Plan, budget_limit, budget_resource, solve
from ocrquant.assign.step_record import step_record
from ocrquant.assign.swaps import Ceiling
from ocrquant.assign.terms import KV_CACHE, CachePolicy, Terms, terms_of
from ocrquant.formats import FORMATS, Precision
from ocrquant.recipe.sections import AssignSection, Budget

__all__ = ["assign", "choose_formats", "pareto", "plan_ceiling", "plan_precisions", "plan_problem"]


_CACHES: Mapping[Precision, CachePrecision] = {Precision.BF16: "bf16", Precision.FP8: "fp8"}


def assign(
    run: RunFolder,
    sensitivity: Sensitivity,
    section: AssignSection,
    inputs: Mapping[str, str],
    *,
    kv_cache: CachePolicy = "bf16",
    judge: Judge | None = None,
) -> Assignment:
    """Writes ``pareto.json``, then ``assignment.yaml``.

    Args:
        run: The run folder.
        sensitivity: The scores.
        section: Budget, machine, limits and repair.
        inputs: SHA-256 of everything that the plan is made from.
        kv_cache: What keys and values of the checkpoint shall be.
        judge: Measures a whole plan; needed where the section asks for a repair.

    Raises:
        BudgetError: The budget cannot be reached.
        ArtifactError: A score or a cost table is missing.
        PatternError: A pattern or a kind of the section matches nothing.
        RecipeError: The cost table lacks a time.
        OutputError: The folder is not writable or the disk is full.
    """
    terms = terms_of(section, kv_cache)
    assignment = choose_formats(
        sensitivity,
        section.budget,
        inputs,
        terms=terms,
        judge=judge,
        max_measurements=section.repair.max_measurements,
    )
    run.save(pareto(sensitivity, assignment, inputs, terms=terms))
    run.save(assignment)
    return assignment


def choose_formats(
    sensitivity: Sensitivity,
    budget: Budget,
    inputs: Mapping[str, str],
    *,
    terms: Terms | None = None,
    judge: Judge | None = None,
    max_measurements: int = 0,
) -> Assignment:
    """The best plan within a budget; see `solve`. It is checked against every uniform plan and hand map.

    Args:
        sensitivity: The scores.
        budget: The budget.
        inputs: SHA-256 of everything that the plan is made from.
        terms: Machine, cache, limits and settled groups; none by default.
        judge: Measures a whole plan; see `repair`.
        max_measurements: How many plans it may measure; 0: the plan stays as the sums have it.

    Raises:
        BudgetError: The budget cannot be reached.
        ArtifactError: A score is missing.
        PatternError: A pattern or a kind of the terms matches nothing.
        RecipeError: The cost table lacks a time.
    """
    terms = terms or Terms()
    problem, groups = _problem(sensitivity, budget.kind, terms)
    plan = solve(problem, budget.kind, budget.value, baselines=_other_plans(groups))
    precisions, record = plan.precisions, None
    if max_measurements:
        assert judge is not None, "a repair needs a judge"
        repaired = repair(
            problem,
            precisions,
            _ceiling(problem, budget.kind, budget.value, plan),
            judge,
            max_measurements=max_measurements,
            fixed_cache=_settled_cache(terms),
        )
        precisions, record = repaired.precisions, repaired.record
    return _assignment(sensitivity, budget, inputs, terms, problem, precisions, record)


def plan_problem(sensitivity: Sensitivity, assignment: Assignment, terms: Terms) -> Problem:
    """The problem that a plan was chosen in: by its score, and by its own budget's kind.

    Args:
        sensitivity: The scores.
        assignment: The plan.
        terms: The terms of its recipe.

    Raises:
        ArtifactError: A score is missing.
        PatternError: A pattern or a kind of the terms matches nothing.
        RecipeError: The cost table lacks a time.
    """
    (kind,) = assignment.budget
    return build_problem(narrow(sensitivity, terms, kind), assignment.score, terms)


def plan_precisions(assignment: Assignment, problem: Problem) -> dict[str, Precision]:
    """A plan with the format of keys and values in it, where their cache is part of the problem."""
    has_cache = any(group.name == KV_CACHE for group in problem.groups)
    return assignment.groups | ({KV_CACHE: Precision(assignment.kv_cache)} if has_cache else {})


def plan_ceiling(problem: Problem, assignment: Assignment) -> Ceiling:
    """What a plan may spend: its budget, or under a limit of KL the bytes it has."""
    ((kind, value),) = assignment.budget.items()
    precisions = plan_precisions(assignment, problem)
    return _ceiling(problem, kind, value, Plan(precisions, problem.totals(precisions)))


def pareto(
    sensitivity: Sensitivity,
    assignment: Assignment,
    inputs: Mapping[str, str],
    *,
    terms: Terms | None = None,
) -> Pareto:
    """What other budgets would give, by the score that the plan follows.

    A plan under a budget of bits or time need not lie on the front, whose sizes are bytes with all scales;
    where it does, its point is named.

    Args:
        sensitivity: The scores.
        assignment: The plan.
        inputs: SHA-256 of everything that the front is made from.
        terms: Machine, cache, limits and settled groups; none by default.

    Raises:
        ArtifactError: A score is missing.
        PatternError: A pattern or a kind of the terms matches nothing.
        RecipeError: The cost table lacks a time.
    """
    terms = terms or Terms()
    (kind,) = assignment.budget
    groups = narrow(sensitivity, terms, kind).groups
    problem = plan_problem(sensitivity, assignment, terms)
    precisions = plan_precisions(assignment, problem)
    return Pareto(
        inputs=dict(inputs),
        score=assignment.score,
        front=_front_points(problem, Plan(precisions, problem.totals(precisions))),
        uniform=[pareto_point(problem, plan, name) for name, plan in _uniform_plans(groups).items()],
        hand=[pareto_point(problem, plan, name) for name, plan in hand_plans(groups).items()],
    )


def _problem(sensitivity: Sensitivity, kind: BudgetKind, terms: Terms) -> tuple[Problem, list[GroupRecord]]:
    open_to = narrow(sensitivity, terms, kind)
    score = plan_score(open_to)
    # A limit in nats needs scores that were held against measured ones.
    score = "kl" if kind == "max_kl" and score == "gradient" else score
    return build_problem(open_to, score, terms), open_to.groups


def _assignment(
    sensitivity: Sensitivity,
    budget: Budget,
    inputs: Mapping[str, str],
    terms: Terms,
    problem: Problem,
    precisions: Mapping[str, Precision],
    record: RepairRecord | None,
) -> Assignment:
    totals = problem.totals(precisions)
    cache = next((group for group in problem.groups if group.name == KV_CACHE), None)
    chosen = None if cache is None else cache.choice(precisions[KV_CACHE])
    cache_bytes = 0 if chosen is None else chosen.weight_bytes
    return Assignment(
        inputs=dict(inputs),
        budget={budget.kind: budget.value},
        score=problem.score,
        predicted_loss=problem.loss(totals.loss),
        bits_per_weight=problem.bits_per_weight(totals.bits),
        weight_bytes=totals.weight_bytes - cache_bytes,
        kv_cache=_settled_cache(terms) if chosen is None else _CACHES[chosen.precision],
        kv_bytes=cache_bytes or None,
        step=step_record(sensitivity, problem, precisions, terms),
        repair=record,
        groups={group.name: precisions[group.name] for group in sensitivity.groups},
    )


def _settled_cache(terms: Terms) -> CachePrecision:
    """Format of keys and values where it is no choice: without a score nothing speaks for FP8."""
    return "fp8" if terms.kv_cache == "fp8" else "bf16"


def _ceiling(problem: Problem, kind: BudgetKind, value: float, plan: Plan) -> Ceiling:
    if kind == "max_kl":
        return Ceiling("weight_bytes", plan.totals.weight_bytes)
    return Ceiling(budget_resource(kind), budget_limit(problem, kind, value))


def _front_points(problem: Problem, plan: Plan) -> list[ParetoPoint]:
    points = {p.totals.weight_bytes: pareto_point(problem, p.precisions) for p in pareto_front(problem)}
    if is_on_front(problem, plan):
        points[plan.totals.weight_bytes] = pareto_point(problem, plan.precisions, "plan")
    return [points[num_bytes] for num_bytes in sorted(points)]


def _uniform_plans(groups: list[GroupRecord]) -> dict[str, dict[str, Precision]]:
    """bf16 and every format that some group may take, by name."""
    present = {precision for group in groups for precision in group.precisions} | {Precision.BF16}
    return {str(precision): uniform_plan(groups, precision) for precision in FORMATS if precision in present}


def _other_plans(groups: list[GroupRecord]) -> dict[str, dict[str, Precision]]:
    return _uniform_plans(groups) | hand_plans(groups)
