"""What is scored: one group in one format, with its rounded weights ready to be multiplied with.

Knows what a recipe leaves open and the rounded weights. Knows no page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ocrquant.adapters import Group, ModelMap, SearchSpace
from ocrquant.artifacts import GroupRecord, RoundedWeights, Rounding
from ocrquant.formats import Precision
from ocrquant.simulate import SimulatedLinear, rounded_linears

__all__ = ["Candidate", "RoundedCandidates", "candidates_of", "group_record", "group_records"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One group in one format.

    Attributes:
        group: Name of the group.
        precision: The format.
        linears: Names of its linears.
        block: Decoder block that holds them; the number of blocks for the head.
    """

    group: str
    precision: Precision
    linears: tuple[str, ...]
    block: int


def group_records(model_map: ModelMap, space: SearchSpace) -> list[GroupRecord]:
    """All searchable groups in the order of the forward pass, with what is open to them and why not more."""
    reasons: dict[str, list[str]] = {group.name: [] for group in model_map.groups}
    for item in space.ineligible:
        reasons[item.group].append(f"not {item.precision}, as {item.reason}")
    owners = {linear.name: group.name for group in model_map.groups for linear in group.linears}
    for match in space.matches:
        for group in dict.fromkeys(owners[name] for name in match.linears if name in owners):
            reasons[group].append(f"{match.where} says {match.pattern}")
    return [
        group_record(group, space.choices[group.name], "; ".join(reasons[group.name]))
        for group in model_map.groups
    ]


def group_record(group: Group, precisions: Sequence[Precision], reason: str = "") -> GroupRecord:
    """A group as the artefact states it.

    Args:
        group: The group.
        precisions: What is open to it.
        reason: Why not more.
    """
    return GroupRecord(
        name=group.name,
        kind=group.kind,
        block=group.block,
        linears=[linear.name for linear in group.linears],
        shapes=[(linear.out_features, linear.in_features) for linear in group.linears],
        num_weights=group.num_weights,
        precisions=list(precisions),
        reason=reason,
    )


def candidates_of(model_map: ModelMap, groups: Sequence[GroupRecord]) -> list[Candidate]:
    """Every format below bf16 that is open to a group, in the order of the forward pass."""
    blocks = {group.name: group.block for group in model_map.groups}
    found = []
    for record in groups:
        block = blocks[record.name]
        place = model_map.num_blocks if block is None else block
        found += [
            Candidate(record.name, precision, tuple(record.linears), place)
            for precision in record.precisions
            if precision is not Precision.BF16
        ]
    return found


@dataclass(frozen=True, slots=True)
class RoundedCandidates:
    """The rounded weights of candidates, read when asked for."""

    rounding: Rounding
    weights: RoundedWeights
    device: torch.device

    def linears(self, candidate: Candidate) -> Mapping[str, SimulatedLinear]:
        """Quantized linears by name.

        Raises:
            ArtifactError: The group was not rounded to this format.
        """
        plan = {candidate.group: candidate.precision}
        return rounded_linears(self.rounding, self.weights, plan, device=self.device)
