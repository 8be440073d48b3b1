"""What there is to choose: groups, the formats open to each, and their scores and sizes as whole numbers.

Knows a sensitivity artefact. Whole numbers make every later comparison exact and the same on any machine:
scores are rounded up to a grid 2^60 times finer than the largest possible sum, bits and bytes are whole
already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, lcm

from ocrquant.artifacts import GroupRecord, Sensitivity, SensitivityRow
from ocrquant.artifacts.sensitivity import ScoreKind
from ocrquant.errors import ArtifactError
from ocrquant.formats import FORMATS, Precision

__all__ = ["Choice", "GroupChoices", "Problem", "Totals", "build_problem", "plan_score", "uniform_plan"]

_GRID_BITS = 60
"""Sums of scores stay below 2^60 grid steps, so that differences of two sums fit a signed 64-bit number."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One format for one group.

    Attributes:
        precision: The format.
        loss: Its score in grid steps, zero where it was measured below zero.
        bits: Nominal bits of all its weights, in units of `Problem.bit`.
        weight_bytes: Bytes on disk, all scales included.
        row: The measurement; None for bf16, whose score is zero by definition.
    """

    precision: Precision
    loss: int
    bits: int
    weight_bytes: int
    row: SensitivityRow | None


@dataclass(frozen=True, slots=True)
class GroupChoices:
    """The formats open to one group, most bits first."""

    name: str
    num_weights: int
    choices: tuple[Choice, ...]

    def choice(self, precision: Precision) -> Choice | None:
        """The choice of that format; None where it is not open."""
        return next((choice for choice in self.choices if choice.precision is precision), None)


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the groups of a plan, in the units of `Choice`."""

    loss: int
    bits: int
    weight_bytes: int


@dataclass(frozen=True, slots=True)
class Problem:
    """All groups, sorted by name, so that the order in a file has no influence on a plan.

    Attributes:
        score: Kind of score behind the losses.
        groups: Groups and their choices.
        loss_step: Nats a token (or the unit of the score) of one grid step.
        bit: What one unit of `Choice.bits` is worth in bits.
        num_weights: Weights of all groups.
    """

    score: ScoreKind
    groups: tuple[GroupChoices, ...]
    loss_step: Fraction
    bit: Fraction
    num_weights: int

    def totals(self, plan: Mapping[str, Precision]) -> Totals:
        """Sums of a plan.

        Raises:
            KeyError: The plan lacks a group or gives it a format that is not open to it.
        """
        chosen = []
        for group in self.groups:
            choice = group.choice(plan[group.name])
            if choice is None:
                raise KeyError(f"{group.name} cannot be {plan[group.name]}")
            chosen.append(choice)
        return Totals(
            loss=sum(choice.loss for choice in chosen),
            bits=sum(choice.bits for choice in chosen),
            weight_bytes=sum(choice.weight_bytes for choice in chosen),
        )

    def loss(self, steps: int) -> float:
        """Grid steps as the score's own unit."""
        return float(steps * self.loss_step)

    def bits_per_weight(self, bits: int) -> float:
        """Units of `Choice.bits`, summed over all groups, as bits a weight."""
        return float(bits * self.bit / self.num_weights)


def plan_score(sensitivity: Sensitivity) -> ScoreKind:
    """The score that a plan follows: screened ones, else the measured KL, else gradients."""
    return sensitivity.plan_score


def build_problem(sensitivity: Sensitivity, score: ScoreKind | None = None) -> Problem:
    """Turns measurements into whole numbers.

    A score below zero is noise, since both kinds are sums of squares or divergences: it counts as zero.

    Args:
        sensitivity: The measurements.
        score: Which of them; that of `plan_score` by default.

    Raises:
        ArtifactError: A group has no score for a format that is open to it.
    """
    score = score or plan_score(sensitivity)
    rows = {(row.group, row.precision): row for row in sensitivity.rows if row.score == score}
    groups = sorted(sensitivity.groups, key=lambda group: group.name)
    open_rows = {group.name: _open_rows(group, rows, score) for group in groups}
    bits = {
        (group.name, precision): _bits(precision, row) * group.num_weights
        for group in groups
        for precision, row in open_rows[group.name].items()
    }
    bit = Fraction(1, lcm(*(value.denominator for value in bits.values())))
    worst = [max(map(_loss, open_rows[group.name].values())) for group in groups]
    step = _grid_step(sum(worst, Fraction(0)))
    return Problem(
        score=score,
        groups=tuple(
            GroupChoices(
                name=group.name,
                num_weights=group.num_weights,
                choices=tuple(
                    Choice(
                        precision=precision,
                        loss=ceil(_loss(row) / step),
                        bits=int(bits[group.name, precision] / bit),
                        weight_bytes=_bf16_bytes(group) if row is None else row.weight_bytes,
                        row=row,
                    )
                    for precision, row in open_rows[group.name].items()
                ),
            )
            for group in groups
        ),
        loss_step=step,
        bit=bit,
        num_weights=sum(group.num_weights for group in groups),
    )


def uniform_plan(groups: Sequence[GroupRecord], precision: Precision) -> dict[str, Precision]:
    """The same format everywhere; a group that it is closed to takes the next one up that is open, else down.

    Args:
        groups: Groups with what is open to them.
        precision: The format.
    """
    return {group.name: _nearest(group.precisions, precision) for group in groups}


def _nearest(open_to_it: Sequence[Precision], precision: Precision) -> Precision:
    wanted = FORMATS[precision].bits_per_weight
    above = [p for p in open_to_it if FORMATS[p].bits_per_weight >= wanted]
    return min(above, key=_nominal_bits) if above else max(open_to_it, key=_nominal_bits)


def _nominal_bits(precision: Precision) -> float:
    return FORMATS[precision].bits_per_weight


def _open_rows(
    group: GroupRecord, rows: Mapping[tuple[str, Precision], SensitivityRow], score: ScoreKind
) -> dict[Precision, SensitivityRow | None]:
    found: dict[Precision, SensitivityRow | None] = {}
    for precision in sorted(group.precisions, key=lambda p: (-_nominal_bits(p), p)):
        row = rows.get((group.name, precision))
        if precision is not Precision.BF16 and row is None:
            raise ArtifactError(
                f"{Sensitivity.FILE_NAME}: group {group.name}",
                expected=f"a {score} score in {precision}",
                given="none",
                fix="run the stage `sensitivity` again",
            )
        found[precision] = None if precision is Precision.BF16 else row
    return found


def _bits(precision: Precision, row: SensitivityRow | None) -> Fraction:
    return Fraction(_nominal_bits(precision) if row is None else row.bits_per_weight)


def _bf16_bytes(group: GroupRecord) -> int:
    return int(group.num_weights * _nominal_bits(Precision.BF16)) // 8


def _loss(row: SensitivityRow | None) -> Fraction:
    return Fraction(0) if row is None else max(Fraction(row.mean), Fraction(0))


def _grid_step(largest_sum: Fraction) -> Fraction:
    """The smallest power of two of which `largest_sum`, each of its terms rounded up, has fewer than 2^60."""
    if largest_sum == 0:
        return Fraction(1)
    step = Fraction(1)
    # One bit to spare for rounding up.
    while largest_sum >= step * 2 ** (_GRID_BITS - 1):
        step *= 2
    while largest_sum < step * 2 ** (_GRID_BITS - 2):
        step /= 2
    return step
