"""What there is to choose: groups, formats open to each, their scores, sizes and times as whole numbers.

Knows sums. Does not know where the numbers come from: see `build`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from ocrquant.artifacts import GroupRecord, KvCacheScore, Sensitivity, SensitivityRow
from ocrquant.artifacts.sensitivity import ScoreKind
from ocrquant.assign.kinds import KindRow
from ocrquant.assign.terms import KV_CACHE
from ocrquant.assign.ties import tied_groups, torn_groups
from ocrquant.formats import FORMATS, Precision

__all__ = [
    "Choice",
    "GroupChoices",
    "Problem",
    "Totals",
    "nearest_open",
    "plan_score",
    "uniform_plan",
]


@dataclass(frozen=True, slots=True)
class Choice:
    """One format for one group.

    Attributes:
        precision: The format.
        loss: Its score in grid steps, zero where it was measured below zero.
        bits: Nominal bits of all its weights, in units of `Problem.bit`.
        weight_bytes: Bytes on disk, all scales included; of keys and values, those in memory that count.
        row: The measurement; None for bf16, whose score is zero by definition.
        step_ns: Nanoseconds of a decode step; 0 where nothing is timed.
    """

    precision: Precision
    loss: int
    bits: int
    weight_bytes: int
    row: SensitivityRow | KvCacheScore | None
    step_ns: int = 0


@dataclass(frozen=True, slots=True)
class GroupChoices:
    """The formats open to one group, most bits first.

    Attributes:
        name: Its name; `KV_CACHE` for keys and values, which have no weights.
        kind: What its linears do; empty for keys and values.
        num_weights: Weights of all its linears.
        choices: What is open.
    """

    name: str
    kind: str
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
    step_ns: int = 0


@dataclass(frozen=True, slots=True)
class Problem:
    """All groups, sorted by name, so that the order in a file has no influence on a plan.

    Attributes:
        score: Kind of score behind the losses.
        groups: Groups and their choices, keys and values among them where their cache is scored.
        loss_step: Nats a token (or the unit of the score) of one grid step.
        bit: What one unit of `Choice.bits` is worth in bits.
        num_weights: Weights of all groups.
        rows: Limits of kinds.
    """

    score: ScoreKind
    groups: tuple[GroupChoices, ...]
    loss_step: Fraction
    bit: Fraction
    num_weights: int
    rows: tuple[KindRow, ...] = ()

    def totals(self, plan: Mapping[str, Precision]) -> Totals:
        """Sums of a plan.

        Raises:
            KeyError: The plan lacks a group or gives it a format that is not open to it.
        """
        chosen = self._chosen(plan)
        return Totals(
            loss=sum(choice.loss for choice in chosen),
            bits=sum(choice.bits for choice in chosen),
            weight_bytes=sum(choice.weight_bytes for choice in chosen),
            step_ns=sum(choice.step_ns for choice in chosen),
        )

    def broken_limits(self, plan: Mapping[str, Precision]) -> list[str]:
        """Names of the limits of kinds that a plan exceeds, and of groups that it tears apart.

        Raises:
            KeyError: See `totals`.
        """
        chosen = [g.choices.index(c) for g, c in zip(self.groups, self._chosen(plan), strict=True)]
        exceeded = [
            row.name
            for row in self.rows
            if sum(row.coefficients[g][index] for g, index in enumerate(chosen)) > row.at_most
        ]
        weights = [group for group in self.groups if group.name != KV_CACHE]
        return exceeded + torn_groups(weights, plan)

    def _chosen(self, plan: Mapping[str, Precision]) -> list[Choice]:
        chosen = []
        for group in self.groups:
            # A plan of weights alone leaves keys and values as they are, or as the terms settle them.
            is_cache = group.name == KV_CACHE
            wanted = plan.get(KV_CACHE, group.choices[0].precision) if is_cache else plan[group.name]
            choice = group.choice(wanted)
            if choice is None:
                raise KeyError(f"{group.name} cannot be {wanted}")
            chosen.append(choice)
        return chosen

    @property
    def has_ties(self) -> bool:
        """Whether some groups take one format; see `ties`."""
        return len(tied_groups(self.groups)) < len(self.groups)

    def loss(self, steps: int) -> float:
        """Grid steps as the score's own unit."""
        return float(steps * self.loss_step)

    def bits_per_weight(self, bits: int) -> float:
        """Units of `Choice.bits`, summed over all groups, as bits a weight."""
        return float(bits * self.bit / self.num_weights)


def plan_score(sensitivity: Sensitivity) -> ScoreKind:
    """The score that a plan follows: screened ones, else the measured KL, else gradients."""
    return sensitivity.plan_score


def uniform_plan(groups: Sequence[GroupRecord], precision: Precision) -> dict[str, Precision]:
    """The same format everywhere; a group that it is closed to takes the next one up that is open, else down.

    Args:
        groups: Groups with what is open to them.
        precision: The format.
    """
    return {group.name: nearest_open(group.precisions, precision) for group in groups}


def nearest_open(open_to_it: Sequence[Precision], precision: Precision) -> Precision:
    """A format, or where it is closed the next one up that is open, else down.

    Args:
        open_to_it: Formats that are open.
        precision: The format.
    """
    wanted = FORMATS[precision].bits_per_weight
    above = [p for p in open_to_it if FORMATS[p].bits_per_weight >= wanted]
    return min(above, key=nominal_bits) if above else max(open_to_it, key=nominal_bits)


def nominal_bits(precision: Precision) -> float:
    """Bits of a weight, block scales included."""
    return FORMATS[precision].bits_per_weight
