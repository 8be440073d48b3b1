"""How many pages: twice as many each time, until the plans that follow from the scores no longer change.

A plan has changed where the one from fewer pages would lose over 2 per cent more, by the scores from more
pages. The standard error of a score says little here: on 32 crops of lines and blocks (2026-11-30) it is half
of the score for most groups, as a few pages carry most of it, but the same ones for all groups, so that they
do not decide between them. Knows counts and plans.
"""

from __future__ import annotations

from collections.abc import Iterator

from ocrquant.artifacts import Sensitivity
from ocrquant.sensitivity.screening import Plans, regret

__all__ = ["MAX_CHANGE", "largest_change", "page_counts"]

FIRST_PAGES = 8
MAX_CHANGE = 0.02


def page_counts(num_pages: int) -> Iterator[int]:
    """Pages to have scored after each step, the last one all of them."""
    count = FIRST_PAGES
    while count < num_pages:
        yield count
        count *= 2
    yield num_pages


def largest_change(sensitivity: Sensitivity, before: Plans, after: Plans) -> tuple[str, float]:
    """The budget at which plans from fewer pages are worst by the present scores, and their regret there.

    Args:
        sensitivity: The present scores.
        before: Plans from fewer pages.
        after: Plans from the present scores, for the same budgets.
    """
    kind = sensitivity.plan_score
    scores = {(r.group, r.precision): max(0.0, r.mean) for r in sensitivity.rows if r.score == kind}
    by_budget = {budget: regret(scores, before[budget], plan) for budget, plan in after.items()}
    worst = max(by_budget, key=lambda budget: by_budget[budget], default="")
    return worst, by_budget.get(worst, 0.0)
