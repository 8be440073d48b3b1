"""Other ways to solve the same problem: trying everything, and HiGHS through scipy.

HiGHS works in floating point with tolerances, so it proves nothing; but a plan of its that fits in whole
numbers must not beat the exact one, and where it ends in time it must come as far.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product

import numpy as np

from ocrquant.assign.knapsack import Item

_TIME_LIMIT_SECONDS = 5.0


def highs_selection(groups: Sequence[Sequence[Item]], limit: int) -> list[int] | None:
    """A plan of small objective by mixed-integer programming, with no gap allowed.

    Args:
        groups: Choices of each group as (objective, resource).
        limit: Largest sum of resources.

    Returns:
        Index of each group's choice; None where HiGHS found none in time, or none that really fits.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    owner = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    objective = np.array([float(item[0]) for group in groups for item in group])
    resource = np.array([float(item[1]) for group in groups for item in group])
    one_each = csr_array((np.ones(len(owner)), (owner, np.arange(len(owner)))))
    scale = max(float(limit), 1.0)
    result = milp(
        objective / max(objective.max(), 1.0),
        integrality=np.ones(len(owner)),
        bounds=Bounds(0, 1),
        constraints=[
            LinearConstraint(one_each, 1, 1),
            LinearConstraint(csr_array((resource / scale)[None, :]), -np.inf, limit / scale),
        ],
        options={"mip_rel_gap": 0.0, "time_limit": _TIME_LIMIT_SECONDS},
    )
    if result.x is None:
        return None
    starts = np.cumsum([0, *(len(group) for group in groups)])
    chosen = [int(result.x[a:b].argmax()) for a, b in pairwise(starts)]
    return chosen if sum(group[i][1] for group, i in zip(groups, chosen, strict=True)) <= limit else None


def brute_force(groups: Sequence[Sequence[Item]], limit: int) -> Item | None:
    """Least objective within the limit and the least resource that reaches it, by trying every plan."""
    fitting = []
    for plan in product(*groups):
        objective, resource = sum(item[0] for item in plan), sum(item[1] for item in plan)
        if resource <= limit:
            fitting.append((objective, resource))
    return min(fitting, default=None)


def all_undominated(groups: Sequence[Sequence[Item]]) -> list[Item]:
    """Every pair (objective, resource) that no plan beats, by rising resource."""
    sums = {(0, 0)}
    for group in groups:
        sums = {(o + p, r + s) for o, r in sums for p, s in group}
    found: list[Item] = []
    for objective, resource in sorted(sums, key=lambda pair: (pair[1], pair[0])):
        if not found or objective < found[-1][0]:
            found.append((objective, resource))
    return found
