"""Groups that servers compute by one method, so that they take one format: the experts of a layer.

vLLM and SGLang choose a method for all experts of a layer (`RoutedExperts`, `FusedMoE`). A solver sees such
groups as one; what it finds is told group by group again. Knows names and numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ocrquant.assign.kinds import KindRow
from ocrquant.assign.knapsack import Item, Knapsack, Selection
from ocrquant.assign.limited import LimitedKnapsack
from ocrquant.formats import Precision

__all__ = ["TiedSolver", "tied_groups", "torn_groups"]

_EXPERTS = "experts."
"""How the kinds of groups of experts begin."""


class _Choice(Protocol):
    @property
    def precision(self) -> Precision: ...


class _Group(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def choices(self) -> Sequence[_Choice]: ...


def tied_groups(groups: Sequence[_Group]) -> list[tuple[int, ...]]:
    """Indices of the groups, those that take one format in one tuple, in the order of the first of each."""
    units: dict[str, list[int]] = {}
    for index, group in enumerate(groups):
        is_expert = group.kind.startswith(_EXPERTS)
        units.setdefault(group.name.removesuffix(group.kind) if is_expert else group.name, []).append(index)
    return [tuple(unit) for unit in units.values()]


def torn_groups(groups: Sequence[_Group], plan: Mapping[str, Precision]) -> list[str]:
    """Groups that a plan gives another format than one that they are tied to."""
    return [
        groups[index].name
        for unit in tied_groups(groups)
        for index in unit[1:]
        if plan[groups[index].name] is not plan[groups[unit[0]].name]
    ]


@dataclass(frozen=True, slots=True)
class TiedSolver:
    """A knapsack of tied groups, asked and answering group by group.

    Attributes:
        inner: The knapsack over the units.
        units: See `tied_groups`.
        options: For each unit and each format open to all its groups, the index of its choice in each group.
    """

    inner: Knapsack | LimitedKnapsack
    units: tuple[tuple[int, ...], ...]
    options: tuple[tuple[tuple[int, ...], ...], ...]

    @classmethod
    def of(
        cls, groups: Sequence[_Group], item: Callable[[int, int], Item], rows: Sequence[KindRow]
    ) -> TiedSolver | None:
        """The solver of a problem; None where tied groups have no format in common.

        Args:
            groups: Groups and their choices.
            item: Objective and resource of a choice, by the indices of group and choice.
            rows: Further limits over all choices.
        """
        units = tuple(tied_groups(groups))
        options = tuple(tuple(_options([groups[index] for index in unit])) for unit in units)
        if not all(options):
            return None

        def over_units(value: Callable[[int, int], int]) -> list[list[int]]:
            return [
                [sum(value(g, c) for g, c in zip(unit, chosen, strict=True)) for chosen in open_to_it]
                for unit, open_to_it in zip(units, options, strict=True)
            ]

        def row_over_units(row: KindRow) -> KindRow:
            found = over_units(lambda group, choice: row.coefficients[group][choice])
            return KindRow(row.name, tuple(map(tuple, found)), row.at_most)

        objective = over_units(lambda group, choice: item(group, choice)[0])
        resource = over_units(lambda group, choice: item(group, choice)[1])
        items = [list(zip(*both, strict=True)) for both in zip(objective, resource, strict=True)]
        if not rows:
            return cls(Knapsack(items), units, options)
        return cls(LimitedKnapsack(items, [row_over_units(row) for row in rows]), units, options)

    @property
    def is_possible(self) -> bool:
        """Whether any plan keeps the limits of kinds."""
        return isinstance(self.inner, Knapsack) or self.inner.is_possible

    @property
    def least_resource(self) -> int:
        """What the smallest plan takes."""
        return self.inner.least_resource

    @property
    def most_resource(self) -> int:
        """What the plan of least objective takes."""
        return self.inner.most_resource

    def best(self, limit: int) -> Selection | None:
        """The plan of least objective whose resource is at most `limit`; see `Knapsack.best`."""
        found = self.inner.best(limit)
        if found is None:
            return None
        chosen = [0] * sum(map(len, self.units))
        for unit, open_to_it, option in zip(self.units, self.options, found.chosen, strict=True):
            for group, choice in zip(unit, open_to_it[option], strict=True):
                chosen[group] = choice
        return replace(found, chosen=tuple(chosen))


def _options(groups: Sequence[_Group]) -> list[tuple[int, ...]]:
    places = [{choice.precision: index for index, choice in enumerate(group.choices)} for group in groups]
    common = [p for p in places[0] if all(p in place for place in places)]
    return [tuple(place[precision] for place in places) for precision in common]
