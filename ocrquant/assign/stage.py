"""The stage that turns scores and a budget into ``assignment.yaml``, with ``pareto.json`` beside it.

Needs no model and no pages: another budget costs milliseconds and no new measurement.
"""

from __future__ import annotations

from collections.abc import Mapping

from ocrquant.artifacts import Assignment, GroupRecord, Pareto, ParetoPoint, RunFolder, Sensitivity
from ocrquant.assign.front import is_on_front, pareto_front, pareto_point
from ocrquant.assign.problem import Problem, build_problem, plan_score, uniform_plan
from ocrquant.assign.solve import Plan, solve
from ocrquant.formats import FORMATS, Precision
from ocrquant.recipe.sections import AssignSection, Budget

__all__ = ["assign", "choose_formats", "pareto"]


def assign(
    run: RunFolder, sensitivity: Sensitivity, section: AssignSection, inputs: Mapping[str, str]
) -> Assignment:
    """Writes ``pareto.json``, then ``assignment.yaml``.

    Args:
        run: The run folder.
        sensitivity: The scores.
        section: The budget.
        inputs: SHA-256 of everything that the plan is made from.

    Raises:
        BudgetError: The budget cannot be reached.
        ArtifactError: A score is missing.
        OutputError: The folder is not writable or the disk is full.
    """
    assignment = choose_formats(sensitivity, section.budget, inputs)
    run.save(pareto(sensitivity, assignment, inputs))
    run.save(assignment)
    return assignment


def choose_formats(sensitivity: Sensitivity, budget: Budget, inputs: Mapping[str, str]) -> Assignment:
    """The best plan within a budget; see `solve`. It is checked against every uniform plan.

    Args:
        sensitivity: The scores.
        budget: The budget.
        inputs: SHA-256 of everything that the plan is made from.

    Raises:
        BudgetError: The budget cannot be reached.
        ArtifactError: A score is missing.
    """
    score = plan_score(sensitivity)
    # A limit in nats needs scores that were held against measured ones.
    score = "kl" if budget.kind == "max_kl" and score == "gradient" else score
    problem = build_problem(sensitivity, score)
    plan = solve(problem, budget.kind, budget.value, baselines=_uniform_plans(sensitivity.groups))
    return Assignment(
        inputs=dict(inputs),
        budget={budget.kind: budget.value},
        score=problem.score,
        predicted_loss=problem.loss(plan.totals.loss),
        bits_per_weight=problem.bits_per_weight(plan.totals.bits),
        weight_bytes=plan.totals.weight_bytes,
        groups={group.name: plan.precisions[group.name] for group in sensitivity.groups},
    )


def pareto(sensitivity: Sensitivity, assignment: Assignment, inputs: Mapping[str, str]) -> Pareto:
    """What other budgets would give, by the score that the plan follows.

    A plan under a budget of bits need not lie on the front, whose sizes are bytes with all scales; where it
    does, its point is named.

    Args:
        sensitivity: The scores.
        assignment: The plan.
        inputs: SHA-256 of everything that the front is made from.

    Raises:
        ArtifactError: A score is missing.
    """
    problem = build_problem(sensitivity, assignment.score)
    uniform = _uniform_plans(sensitivity.groups)
    return Pareto(
        inputs=dict(inputs),
        score=assignment.score,
        front=_front_points(problem, Plan(assignment.groups, problem.totals(assignment.groups))),
        uniform=[pareto_point(problem, plan, name) for name, plan in uniform.items()],
    )


def _front_points(problem: Problem, plan: Plan) -> list[ParetoPoint]:
    points = {p.totals.weight_bytes: pareto_point(problem, p.precisions) for p in pareto_front(problem)}
    if is_on_front(problem, plan):
        points[plan.totals.weight_bytes] = pareto_point(problem, plan.precisions, "plan")
    return [points[num_bytes] for num_bytes in sorted(points)]


def _uniform_plans(groups: list[GroupRecord]) -> dict[str, dict[str, Precision]]:
    """bf16 and every format that some group may take, by name."""
    present = {precision for group in groups for precision in group.precisions} | {Precision.BF16}
    return {str(precision): uniform_plan(groups, precision) for precision in FORMATS if precision in present}
