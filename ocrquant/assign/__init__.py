"""The stage that chooses a format for every group: the exact optimum of a sum of scores under a budget.

Knows scores, sizes and times. Knows no model, no page and no torch.
"""

from ocrquant.assign.build import build_problem
from ocrquant.assign.changes import GroupChange, changes_frame, group_changes, terms_of_size, with_more_bits
from ocrquant.assign.explain import explain
from ocrquant.assign.front import pareto_front, pareto_point
from ocrquant.assign.hand_maps import hand_plans
from ocrquant.assign.narrow import narrow
from ocrquant.assign.problem import Problem, plan_score, uniform_plan
from ocrquant.assign.repair import Judge, repair
from ocrquant.assign.solve import Plan, solve
from ocrquant.assign.stage import assign, choose_formats, pareto, plan_problem
from ocrquant.assign.terms import KV_CACHE, Terms, terms_of

__all__ = [
    "KV_CACHE",
    "GroupChange",
    "Judge",
    "Plan",
    "Problem",
    "Terms",
    "assign",
    "build_problem",
    "changes_frame",
    "choose_formats",
    "explain",
    "group_changes",
    "hand_plans",
    "narrow",
    "pareto",
    "pareto_front",
    "pareto_point",
    "plan_problem",
    "plan_score",
    "repair",
    "solve",
    "terms_of",
    "terms_of_size",
    "uniform_plan",
    "with_more_bits",
]
