"""Plans for a fixed grid of budgets, by which scoring sees what its scores decide.

The grid does not follow the budget of a recipe, so that scores serve every budget and another one scores
nothing again. Knows the solver.
"""

from __future__ import annotations

from ocrquant.artifacts import Sensitivity
from ocrquant.assign import build_problem, solve
from ocrquant.errors import BudgetError
from ocrquant.formats import Precision

__all__ = ["BITS_PER_WEIGHT", "grid_plans"]

BITS_PER_WEIGHT = (4.75, 5.0, 5.5, 6.0, 6.5, 7.0, 7.5, 8.0, 9.0, 10.0, 12.0)


def grid_plans(sensitivity: Sensitivity) -> dict[str, dict[str, Precision]]:
    """The best plan at each budget that can be reached with what is open to the groups.

    Args:
        sensitivity: Scores of every choice.

    Raises:
        ArtifactError: A score is missing.
    """
    problem, found = build_problem(sensitivity), {}
    for bits in BITS_PER_WEIGHT:
        try:
            found[f"{bits:g} bits"] = solve(problem, "bits_per_weight", bits).precisions
        except BudgetError:
            continue
    return found
