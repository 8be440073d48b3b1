"""Other plans near a plan: one group, or two, in another format, within the same budget.

Knows a problem and a limit. Does not know what a plan costs when it is measured as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import erf, exp, hypot, pi, sqrt

from ocrquant.assign.problem import Choice, Problem
from ocrquant.formats import Precision

__all__ = ["Ceiling", "Move", "NearbyPlan", "nearby_plans"]


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What a plan may spend.

    Attributes:
        resource: Field of `Totals`.
        limit: Its largest sum, in whole units.
    """

    resource: str
    limit: int


@dataclass(frozen=True, slots=True)
class Move:
    """One group taking another format.

    Attributes:
        group: Its name.
        old: The format it has.
        new: The format it takes.
    """

    group: str
    old: Choice
    new: Choice


@dataclass(frozen=True, slots=True)
class NearbyPlan:
    """A plan one or two moves away.

    Attributes:
        moves: What changes.
        predicted: Change of the sum of scores, in the score's unit.
        noise: Standard error of that change by the noise of the scores.
    """

    moves: tuple[Move, ...]
    predicted: float
    noise: float

    @property
    def expected_gain(self) -> float:
        """How much less it loses, on average, where it loses less; zero counts where it loses more.

        The predicted change is taken for normal with its noise: the expected improvement of Jones, Schonlau
        and Welch, "Efficient global optimization" (1998).
        """
        if self.noise <= 0:
            return max(0.0, -self.predicted)
        z = -self.predicted / self.noise
        density, below = exp(-z * z / 2) / sqrt(2 * pi), (1 + erf(z / sqrt(2))) / 2
        return self.noise * (z * below + density)

    def apply(self, plan: Mapping[str, Precision]) -> dict[str, Precision]:
        """The plan with these moves made."""
        return dict(plan) | {move.group: move.new.precision for move in self.moves}


def nearby_plans(
    problem: Problem, plan: Mapping[str, Precision], ceiling: Ceiling, *, through: str | None = None
) -> list[NearbyPlan]:
    """Plans one or two moves away that keep the budget and the limits of kinds, most promising first.

    Of two moves at least one saves; a single one that saves and gains nothing by its score is left out, as
    are two of which either one alone would do.

    Args:
        problem: Groups and choices.
        plan: The plan.
        ceiling: The budget.
        through: Only plans that change this group.
    """
    moves = list(_moves(problem, plan))
    slack = ceiling.limit - getattr(problem.totals(plan), ceiling.resource)
    cost = {move: getattr(move.new, ceiling.resource) - getattr(move.old, ceiling.resource) for move in moves}
    found = [(move,) for move in moves if cost[move] <= slack and move.new.loss <= move.old.loss]
    savers = [move for move in moves if cost[move] < 0]
    spenders = [move for move in moves if cost[move] > slack]
    pairs = [
        (saver, spender)
        for saver in savers
        for spender in spenders
        if saver.group != spender.group and cost[saver] + cost[spender] <= slack
    ]
    nearby = [_nearby(problem, moved) for moved in (*found, *pairs) if _touches(moved, through)]
    nearby.sort(key=lambda near: (-near.expected_gain, [(m.group, m.new.precision) for m in near.moves]))
    if not problem.rows and not problem.has_ties:
        return nearby
    return [near for near in nearby if not problem.broken_limits(near.apply(plan))]


def _touches(moves: tuple[Move, ...], group: str | None) -> bool:
    return group is None or any(move.group == group for move in moves)


def _moves(problem: Problem, plan: Mapping[str, Precision]) -> Iterator[Move]:
    for group in problem.groups:
        old = group.choice(plan[group.name]) if group.name in plan else None
        for new in group.choices if old is not None else ():
            if new is not old:
                assert old is not None
                yield Move(group.name, old, new)


def _nearby(problem: Problem, moves: tuple[Move, ...]) -> NearbyPlan:
    steps = sum(move.new.loss - move.old.loss for move in moves)
    noises = [_noise(choice) for move in moves for choice in (move.old, move.new)]
    return NearbyPlan(moves, problem.loss(steps), hypot(*noises))


def _noise(choice: Choice) -> float:
    return 0.0 if choice.row is None else choice.row.standard_error
