"""The knapsack with further limits: mixed-integer programming by HiGHS, held to whole numbers afterwards.

Knows numbers only. HiGHS computes in floating point with tolerances: rows are divided by what their numbers
share, so that a whole unit is far above a tolerance, and what it returns is added up again in whole numbers.
A plan that exceeds a limit all the same is cut off and the search goes on. Its objective is the least up to
`Selection.gap`: a few parts in 10^9, or what was proven when a search of many equal sums was stopped. One
thread, no clock: the same plan each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from math import gcd

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, OptimizeResult, milp
from scipy.sparse import csr_array

from ocrquant.assign.kinds import KindRow
from ocrquant.assign.knapsack import Item, Selection

__all__ = ["LimitedKnapsack"]

_SCALE = 1e6
"""Size that objectives and rows are brought to: HiGHS takes 10^-6 for zero."""

_MAX_NODES = 5_000
"""Of the search for the least objective; 8 s for 60 groups on one core (2026-11-30)."""

_FEW_NODES = 200
"""Of the searches for the smallest plan and among equal plans, where the first few parts in 10^4 suffice."""

_ROUGHLY = 1e-4
_INFEASIBLE = 2
"""What scipy calls it."""

_MAX_CUTS = 200
"""Plans over a limit by less than a tolerance that are cut off before the search gives up on a limit."""


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    """A limit over all choices, flat, in whole numbers."""

    coefficients: NDArray[np.object_]
    at_most: int

    def holds(self, chosen: NDArray[np.intp]) -> bool:
        return int(sum(self.coefficients[chosen])) <= self.at_most

    def scaled(self) -> tuple[NDArray[np.float64], float]:
        """The same limit divided by what its numbers share, and half a unit of room for rounding."""
        shared = gcd(*(int(value) for value in self.coefficients)) or 1
        values = self.coefficients // shared
        # In whole numbers a sum <= n is a sum <= n + 1/2.
        limit = float(self.at_most // shared) + 0.5
        size = max(1.0, max(abs(limit), float(max(abs(values)))) / _SCALE)
        return values.astype(np.float64) / size, limit / size


class LimitedKnapsack:
    """One problem with limits of kinds, prepared for any number of limits of the resource.

    The same questions as `Knapsack`.

    Args:
        groups: Choices of each group as (objective, resource), at least one each.
        rows: Further limits.
    """

    def __init__(self, groups: Sequence[Sequence[Item]], rows: Sequence[KindRow]) -> None:
        self._starts = list(accumulate((len(group) for group in groups), initial=0))
        self._objective = _flat([item[0] for group in groups for item in group])
        self._resource = _flat([item[1] for group in groups for item in group])
        self._rows = [_Row(_flat([v for g in row.coefficients for v in g]), row.at_most) for row in rows]
        num_choices = self._starts[-1]
        owner = np.repeat(np.arange(len(groups)), np.diff(self._starts))
        self._one_each = csr_array(
            (np.ones(num_choices), (owner, np.arange(num_choices))), shape=(len(groups), num_choices)
        )

    @cached_property
    def _smallest(self) -> NDArray[np.intp] | None:
        found = self._solve(self._resource, [], is_rough=True)
        return None if found is None else found[0]

    @property
    def is_possible(self) -> bool:
        """Whether any plan keeps the limits of kinds."""
        return self._smallest is not None

    @property
    def least_resource(self) -> int:
        """What a plan of few resources takes that keeps the limits of kinds: the least, up to 10^-4 of it."""
        assert self._smallest is not None, "some plan keeps the limits"
        return int(sum(self._resource[self._smallest]))

    @cached_property
    def most_resource(self) -> int:
        """What the plan of least objective takes."""
        best = self.best(int(sum(max(self._resource[a:b]) for a, b in pairwise(self._starts))))
        assert best is not None, "some plan keeps the limits"
        return best.resource

    def best(self, limit: int) -> Selection | None:
        """The plan of least objective whose resource is at most `limit`, and among those of least resource.

        Args:
            limit: Largest sum of resources.

        Returns:
            None where no plan meets the limits.
        """
        if self._smallest is None:
            return None
        within = _Row(self._resource, limit)
        found = self._solve(self._objective, [within])
        if found is None and within.holds(self._smallest):
            # Only a search that was stopped before its first plan comes here.
            found = self._smallest, 0
        if found is None:
            return None
        chosen, bound = found
        objective = int(sum(self._objective[chosen]))
        smaller = self._solve(self._resource, [within, _Row(self._objective, objective)], is_rough=True)
        if smaller is not None and sum(self._resource[smaller[0]]) < sum(self._resource[chosen]):
            chosen = smaller[0]
        reached = int(sum(self._objective[chosen]))
        return Selection(
            chosen=tuple(int(c) - start for c, start in zip(chosen, self._starts[:-1], strict=True)),
            objective=reached,
            resource=int(sum(self._resource[chosen])),
            gap=max(0, reached - bound),
        )

    def _solve(
        self, objective: NDArray[np.object_], extra: Sequence[_Row], *, is_rough: bool = False
    ) -> tuple[NDArray[np.intp], int] | None:
        """Flat indices of the choices of least objective, and a bound below which none exists."""
        rows = [*self._rows, *extra]
        unit = max(1.0, float(max(objective))) / _SCALE
        cuts: list[NDArray[np.intp]] = []
        while len(cuts) <= _MAX_CUTS:
            result = self._run(objective.astype(np.float64) / unit, rows, cuts, is_rough=is_rough)
            if result.x is None and is_rough and result.status != _INFEASIBLE:
                is_rough = False
                continue
            if result.x is None:
                return None
            chosen = np.array([a + int(result.x[a:b].argmax()) for a, b in pairwise(self._starts)])
            if all(row.holds(chosen) for row in rows):
                return chosen, int(result.mip_dual_bound * unit)
            cuts.append(chosen)
        return None

    def _run(
        self,
        objective: NDArray[np.float64],
        rows: Sequence[_Row],
        cuts: Sequence[NDArray[np.intp]],
        *,
        is_rough: bool,
    ) -> OptimizeResult:
        scaled = [row.scaled() for row in rows]
        matrix = [values for values, _ in scaled]
        limits = [limit for _, limit in scaled]
        for chosen in cuts:
            cut = np.zeros(len(objective))
            cut[chosen] = 1.0
            matrix.append(cut)
            limits.append(len(chosen) - 1.0)
        constraints = [LinearConstraint(self._one_each, 1, 1)]
        if matrix:
            constraints.append(LinearConstraint(csr_array(np.array(matrix)), -np.inf, np.array(limits)))
        return milp(
            objective,
            integrality=np.ones(len(objective)),
            bounds=Bounds(0, 1),
            constraints=constraints,
            options={
                "mip_rel_gap": _ROUGHLY if is_rough else 0.0,
                "node_limit": _FEW_NODES if is_rough else _MAX_NODES,
            },
        )


def _flat(values: Sequence[int]) -> NDArray[np.object_]:
    """Python's whole numbers, which do not overflow."""
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array
