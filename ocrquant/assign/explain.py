"""Why a group has its format, in words: its scores, and what a step up or down would cost here and elsewhere.

Also what the budget is worth at its margin, and with which group this one would trade.

Knows scores, sizes and times. Does not solve anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ocrquant.artifacts import Assignment, GroupRecord, KvCacheScore, Sensitivity
from ocrquant.artifacts.sensitivity import ScoreKind
from ocrquant.assign.narrow import narrow
from ocrquant.assign.problem import Choice, GroupChoices, Problem
from ocrquant.assign.stage import plan_ceiling, plan_precisions, plan_problem
from ocrquant.assign.swaps import Ceiling, nearby_plans
from ocrquant.assign.terms import Terms
from ocrquant.errors import PatternError
from ocrquant.formats import Precision

__all__ = ["explain"]

_NAMES: Mapping[bool, str] = {True: "measured KL", False: "KL estimated from gradients"}
_UNIT = "nats a token"
_LOSS, _LOSS_UNIT = "measured change of the loss", "of a loss"
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class _Good:
    """What the budget is spent on, in words: time, or bytes, also where bits or a KL are limited.

    Attributes:
        field: Of `Choice`.
        name: What an amount is counted in.
        units: Whole units of `field` to one of these.
        unit: Of the loss that it is weighed against.
    """

    field: str
    name: str
    units: int
    unit: str = _UNIT

    def amount(self, units: int) -> str:
        """So many whole units in words."""
        return f"{units / self.units:.3g} {self.name}"


_BYTES = _Good("weight_bytes", "MiB", _MIB)
_TIME = _Good("step_ns", "us", 1000)


@dataclass(frozen=True, slots=True)
class _Move:
    """One group taking another format.

    Attributes:
        group: Its name.
        choice: The other format.
        loss: Change of the predicted loss.
        units: Change of what the budget is spent on.
        good: What that is.
    """

    group: str
    choice: Choice
    loss: float
    units: int
    good: _Good

    @property
    def price(self) -> float:
        """Loss a MiB or microsecond moved; at least zero, and infinite where nothing moves."""
        return abs(self.loss) / abs(self.units) * self.good.units if self.units else float("inf")


def explain(sensitivity: Sensitivity, assignment: Assignment, group: str, terms: Terms | None = None) -> str:
    """Sentences about one group of a plan.

    Args:
        sensitivity: The scores.
        assignment: The plan, which a person may have edited.
        group: Name of the group, of one of its linears, or `KV_CACHE`.
        terms: The terms that the plan was chosen under; none by default.

    Raises:
        PatternError: There is no such group.
        ArtifactError: A score is missing.
        RecipeError: The cost table lacks a time.
    """
    terms = terms or Terms()
    problem = plan_problem(sensitivity, assignment, terms)
    plan = plan_precisions(assignment, problem)
    (kind,) = assignment.budget
    record = _record(narrow(sensitivity, terms, kind), group)
    name = group if record is None else record.name
    choices = next((g for g in problem.groups if g.name == name), None)
    if choices is None or name not in plan:
        fix = "name a group of assignment.yaml or one of its linears"
        raise PatternError(group, expected="a group of this run", given="none of that name", fix=fix)
    chosen = choices.choice(plan[name])
    if chosen is None:
        open_to_it = ", ".join(choice.precision for choice in choices.choices)
        return f"{name} is {plan[name]} by hand: the search had {open_to_it} to choose from."
    good = replace(_TIME if kind == "step_us" else _BYTES, unit=_unit(problem.score))
    sentences = [_size(name, record, chosen), *_scores(choices)]
    sentences += _steps(problem, plan, choices, chosen, good)
    if all(g.choice(plan[g.name]) is not None for g in problem.groups):
        sentences += _trade(problem, plan, plan_ceiling(problem, assignment), name)
    if record is not None and record.reason:
        sentences.append(f"Not everything was open: {record.reason}.")
    return "\n".join(sentences)


def _unit(score: ScoreKind) -> str:
    return _LOSS_UNIT if score == "loss" else _UNIT


def _record(sensitivity: Sensitivity, name: str) -> GroupRecord | None:
    return next((record for record in sensitivity.groups if name in (record.name, *record.linears)), None)


def _size(name: str, record: GroupRecord | None, chosen: Choice) -> str:
    time = f"; {_TIME.amount(chosen.step_ns)} of a step" if chosen.step_ns else ""
    size = _BYTES.amount(chosen.weight_bytes)
    if record is None:
        return f"Keys and values are {chosen.precision}: {size} count in the budget{time}."
    linears = f"{len(record.linears)} linear{'s' if len(record.linears) > 1 else ''}"
    return f"{name} is {chosen.precision}: {size} for {linears}, {record.num_weights:,} weights{time}."


def _scores(choices: GroupChoices) -> list[str]:
    sentences = []
    for choice in choices.choices:
        if choice.row is None:
            continue
        row = choice.row
        is_measured = isinstance(row, KvCacheScore) or row.is_measured
        name = _LOSS if row.score == "loss" else _NAMES[is_measured]
        text = f"{name} in {choice.precision}: {row.mean:.3g} ± {row.standard_error:.2g}"
        text += f" {_unit(row.score)} over {row.num_pages} pages ({row.num_tokens:,} tokens)"
        if row.mean < 0:
            text += "; counted as 0, since below zero there is only noise"
        sentences.append(f"{text[:1].upper()}{text[1:]}.")
    return sentences


def _steps(
    problem: Problem, plan: Mapping[str, Precision], choices: GroupChoices, chosen: Choice, good: _Good
) -> list[str]:
    """What the neighbouring formats would cost, beside the best bargain of the other groups."""
    if len(choices.choices) == 1:
        return ["It had no other format to choose from."]
    smaller, larger = (
        _next(problem, choices, chosen, good, is_smaller=is_smaller) for is_smaller in (True, False)
    )
    savings, uses = (
        _moves(problem, plan, choices.name, good, is_smaller=is_smaller) for is_smaller in (True, False)
    )
    sentences = []
    if smaller is not None:
        sentences.append(_smaller_sentence(smaller, savings))
    if larger is not None:
        sentences.append(_larger_sentence(larger, uses))
    own = [move for move in (smaller, larger) if move is not None]
    return sentences + _margin(savings + uses + own, good)


def _smaller_sentence(move: _Move, others: list[_Move]) -> str:
    good = move.good
    saved = good.amount(-move.units)
    if move.loss <= 0:
        return f"{move.choice.precision} would save {saved} and lose nothing by this score."
    text = f"{move.choice.precision} would save {saved} and lose {move.loss:.3g} {good.unit}"
    text += f", {move.price:.3g} a {good.name}"
    if others:
        best = min(others, key=lambda other: other.price)
        elsewhere = f"{best.group} in {best.choice.precision}, at {best.price:.3g}"
        text += f"; the cheapest {good.name} elsewhere is {elsewhere}"
    return f"{text}."


def _larger_sentence(move: _Move, others: list[_Move]) -> str:
    good = move.good
    spent = good.amount(move.units)
    if move.loss >= 0:
        return f"{move.choice.precision} would take {spent} more and gain nothing by this score."
    text = f"{move.choice.precision} would take {spent} more and gain {-move.loss:.3g} {good.unit}"
    text += f", {move.price:.3g} a {good.name}"
    gains = [other for other in others if other.loss < 0]
    if gains:
        best = max(gains, key=lambda other: other.price)
        elsewhere = f"{best.group} in {best.choice.precision}, {best.price:.3g}"
        text += f"; the best use of a {good.name} elsewhere is {elsewhere}"
    return f"{text}."


def _margin(moves: list[_Move], good: _Good) -> list[str]:
    """What the budget is worth where it stands: one step of one group more, or less."""
    gains = [move.price for move in moves if move.units > 0 and move.loss < 0]
    losses = [move.price for move in moves if move.units < 0]
    parts = []
    if gains:
        parts.append(f"one {good.name} more would gain up to {max(gains):.3g} {good.unit}")
    if losses:
        parts.append(f"one less would lose at least {min(losses):.3g}")
    return [f"At this budget {' and '.join(parts)}."] if parts else []


def _trade(problem: Problem, plan: Mapping[str, Precision], ceiling: Ceiling, name: str) -> list[str]:
    """The most promising pair of moves with another group that keeps the budget."""
    pairs = [near for near in nearby_plans(problem, plan, ceiling, through=name) if len(near.moves) == 2]
    if not pairs:
        return []
    near, unit = pairs[0], _unit(problem.score)
    mine, other = sorted(near.moves, key=lambda move: move.group != name)
    change = f"{'add' if near.predicted >= 0 else 'take'} {abs(near.predicted):.3g} ± {near.noise:.2g} {unit}"
    return [
        f"It would trade with {other.group}: itself in {mine.new.precision} and that one in "
        f"{other.new.precision} keep the budget and {change}."
    ]


def _next(
    problem: Problem, choices: GroupChoices, chosen: Choice, good: _Good, *, is_smaller: bool
) -> _Move | None:
    """The step to the nearest format on one side; None at the end."""

    def size(choice: Choice) -> int:
        return int(getattr(choice, good.field))

    sides = [c for c in choices.choices if c is not chosen and (size(c) < size(chosen)) == is_smaller]
    if not sides:
        return None
    other = min(sides, key=lambda choice: abs(size(choice) - size(chosen)))
    loss = problem.loss(other.loss) - problem.loss(chosen.loss)
    return _Move(choices.name, other, loss, size(other) - size(chosen), good)


def _moves(
    problem: Problem, plan: Mapping[str, Precision], besides: str, good: _Good, *, is_smaller: bool
) -> list[_Move]:
    """The same step of all other groups that can take it."""
    found = []
    for group in problem.groups:
        chosen = group.choice(plan[group.name]) if group.name in plan else None
        move = None if chosen is None else _next(problem, group, chosen, good, is_smaller=is_smaller)
        if move is not None and group.name != besides:
            found.append(move)
    return found
