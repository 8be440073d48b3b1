"""The stage that chooses a format for every group: the exact optimum of a sum of scores under a budget.

Knows scores and sizes. Knows no model, no page and no torch.
"""

from ocrquant.assign.changes import GroupChange, changes_frame, group_changes, with_more_bits
from ocrquant.assign.explain import explain
from ocrquant.assign.front import pareto_front, pareto_point
from ocrquant.assign.problem import Problem, build_problem, plan_score, uniform_plan
from ocrquant.assign.solve import Plan, solve
from ocrquant.assign.stage import assign, choose_formats, pareto

__all__ = [
    "GroupChange",
    "Plan",
    "Problem",
    "assign",
    "build_problem",
    "changes_frame",
    "choose_formats",
    "explain",
    "group_changes",
    "pareto",
    "pareto_front",
    "pareto_point",
    "plan_score",
    "solve",
    "uniform_plan",
    "with_more_bits",
]
