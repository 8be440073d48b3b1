"""Why a group has its format, in words: its scores, and what a step up or down would cost here and elsewhere.

Knows scores and sizes. Does not solve anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ocrquant.artifacts import Assignment, GroupRecord, KvCacheScore, Sensitivity
from ocrquant.assign.build import build_problem
from ocrquant.assign.problem import Choice, GroupChoices, Problem
from ocrquant.errors import PatternError
from ocrquant.formats import Precision

__all__ = ["explain"]

_NAMES: Mapping[bool, str] = {True: "measured KL", False: "KL estimated from gradients"}
_UNIT = "nats a token"
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class _Move:
    """One group taking another format.

    Attributes:
        group: Its name.
        choice: The other format.
        loss: Change of the predicted loss.
        num_bytes: Change of the size.
    """

    group: str
    choice: Choice
    loss: float
    num_bytes: int

    @property
    def loss_per_mib(self) -> float:
        """Loss per MiB moved; at least zero, and infinite where no byte moves."""
        return abs(self.loss) / abs(self.num_bytes) * _MIB if self.num_bytes else float("inf")


def explain(sensitivity: Sensitivity, assignment: Assignment, group: str) -> str:
    """Sentences about one group of a plan.

    Args:
        sensitivity: The scores.
        assignment: The plan, which a person may have edited.
        group: Name of the group.

    Raises:
        PatternError: There is no such group.
        ArtifactError: A score is missing.
    """
    record = next((record for record in sensitivity.groups if record.name == group), None)
    if record is None or group not in assignment.groups:
        fix = "name a group of assignment.yaml"
        raise PatternError(group, expected="a group of this run", given="none of that name", fix=fix)
    problem = build_problem(sensitivity, assignment.score)
    choices = next(g for g in problem.groups if g.name == group)
    chosen = choices.choice(assignment.groups[group])
    if chosen is None:
        given = assignment.groups[group]
        return f"{group} is {given} by hand: the search had {_listed(record.precisions)} to choose from."
    sentences = [_size(group, record, chosen), *_scores(choices)]
    sentences += _steps(problem, assignment.groups, choices, chosen)
    if record.reason:
        sentences.append(f"Not everything was open: {record.reason}.")
    return "\n".join(sentences)


def _size(group: str, record: GroupRecord, chosen: Choice) -> str:
    linears = f"{len(record.linears)} linear{'s' if len(record.linears) > 1 else ''}"
    size = f"{_mib(chosen.weight_bytes)} for {linears}, {record.num_weights:,} weights"
    return f"{group} is {chosen.precision}: {size}."


def _scores(choices: GroupChoices) -> list[str]:
    sentences = []
    for choice in choices.choices:
        if choice.row is None:
            continue
        row = choice.row
        is_measured = isinstance(row, KvCacheScore) or row.is_measured
        text = f"{_NAMES[is_measured]} in {choice.precision}: {row.mean:.3g} ± {row.standard_error:.2g}"
        text += f" {_UNIT} over {row.num_pages} pages ({row.num_tokens:,} tokens)"
        if row.mean < 0:
            text += "; counted as 0, since below zero there is only noise"
        sentences.append(f"{text[:1].upper()}{text[1:]}.")
    return sentences


def _steps(
    problem: Problem, plan: Mapping[str, Precision], choices: GroupChoices, chosen: Choice
) -> list[str]:
    """What the neighbouring formats would cost, beside the best bargain of the other groups."""
    if len(choices.choices) == 1:
        return ["It had no other format to choose from."]
    sentences = []
    smaller = _next(problem, choices, chosen, is_smaller=True)
    if smaller is not None:
        others = _moves(problem, plan, choices.name, is_smaller=True)
        sentences.append(_smaller_sentence(smaller, others))
    larger = _next(problem, choices, chosen, is_smaller=False)
    if larger is not None:
        others = _moves(problem, plan, choices.name, is_smaller=False)
        sentences.append(_larger_sentence(larger, others))
    return sentences


def _smaller_sentence(move: _Move, others: list[_Move]) -> str:
    saved = _mib(-move.num_bytes)
    if move.loss <= 0:
        return f"{move.choice.precision} would save {saved} and lose nothing by this score."
    text = f"{move.choice.precision} would save {saved} and lose {move.loss:.3g} {_UNIT}"
    text += f", {move.loss_per_mib:.3g} a MiB"
    if others:
        best = min(others, key=lambda other: other.loss_per_mib)
        elsewhere = f"{best.group} in {best.choice.precision}, at {best.loss_per_mib:.3g}"
        text += f"; the cheapest MiB elsewhere is {elsewhere}"
    return f"{text}."


def _larger_sentence(move: _Move, others: list[_Move]) -> str:
    spent = _mib(move.num_bytes)
    if move.loss >= 0:
        return f"{move.choice.precision} would take {spent} more and gain nothing by this score."
    text = f"{move.choice.precision} would take {spent} more and gain {-move.loss:.3g} {_UNIT}"
    text += f", {move.loss_per_mib:.3g} a MiB"
    gains = [other for other in others if other.loss < 0]
    if gains:
        best = max(gains, key=lambda other: other.loss_per_mib)
        elsewhere = f"{best.group} in {best.choice.precision}, {best.loss_per_mib:.3g}"
        text += f"; the best use of a MiB elsewhere is {elsewhere}"
    return f"{text}."


def _next(problem: Problem, choices: GroupChoices, chosen: Choice, *, is_smaller: bool) -> _Move | None:
    """The step to the nearest format on one side; None at the end."""
    sides = [c for c in choices.choices if c is not chosen and (c.bits < chosen.bits) == is_smaller]
    if not sides:
        return None
    other = min(sides, key=lambda choice: abs(choice.bits - chosen.bits))
    loss = problem.loss(other.loss) - problem.loss(chosen.loss)
    return _Move(choices.name, other, loss, other.weight_bytes - chosen.weight_bytes)


def _moves(problem: Problem, plan: Mapping[str, Precision], besides: str, *, is_smaller: bool) -> list[_Move]:
    """The same step of all other groups that can take it."""
    found = []
    for group in problem.groups:
        chosen = group.choice(plan[group.name]) if group.name in plan else None
        move = None if chosen is None else _next(problem, group, chosen, is_smaller=is_smaller)
        if move is not None and group.name != besides:
            found.append(move)
    return found


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / _MIB:.3g} MiB"


def _listed(precisions: list[Precision]) -> str:
    return ", ".join(precisions)
