"""What is scored: groups in formats, with their rounded weights ready to be multiplied with.

Knows what a recipe leaves open and the rounded weights. Knows no page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ocrquant.adapters import Group, ModelMap, SearchSpace
from ocrquant.adapters.model import DocumentModel
from ocrquant.artifacts import GroupRecord, KvScales, RoundedWeights, Rounding
from ocrquant.formats import Precision
from ocrquant.simulate import SimulatedLinear, apply_plan, rounded_linears

__all__ = [
    "Candidate",
    "Change",
    "RoundedCandidates",
    "candidates_of",
    "group_record",
    "group_records",
]


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


@dataclass(frozen=True, slots=True)
class Change:
    """What is quantized at once.

    Attributes:
        groups: Format by group; those in bf16 change nothing.
        kv_cache: Whether the caches of all full-attention layers are FP8.
    """

    groups: Mapping[str, Precision]
    kv_cache: bool = False


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
    """The rounded weights of candidates, read when asked for, and the scales of caches."""

    rounding: Rounding
    weights: RoundedWeights
    document: DocumentModel

    def linears(self, groups: Mapping[str, Precision]) -> Mapping[str, SimulatedLinear]:
        """Quantized linears by name.

        Raises:
            ArtifactError: A group was not rounded to its format.
        """
        return rounded_linears(self.rounding, self.weights, groups, device=self.document.device)

    def by_block(self, change: Change) -> dict[int, Change]:
        """The part of a change that each decoder block has, those without one left out.

        The number of blocks stands for the head.
        """
        model_map = self.document.map
        blocks = {group.name: group.block for group in model_map.groups}
        groups: dict[int, dict[str, Precision]] = {}
        for name, precision in change.groups.items():
            if precision is not Precision.BF16:
                block = blocks[name]
                groups.setdefault(model_map.num_blocks if block is None else block, {})[name] = precision
        cached = {self._block_of(kv) for kv in self.rounding.kv} if change.kv_cache else set()
        return {block: Change(groups.get(block, {}), block in cached) for block in groups.keys() | cached}

    @contextmanager
    def applied(self, block: int, part: Change | None) -> Iterator[None]:
        """Quantizes the part of a block for the length of a ``with`` block.

        Args:
            block: Its index.
            part: What `by_block` says of it.

        Raises:
            ArtifactError: A group was not rounded to its format.
        """
        if part is None:
            yield
            return
        kv = [scales for scales in self.rounding.kv if part.kv_cache and self._block_of(scales) == block]
        with apply_plan(self.document.model, self.linears(part.groups), kv=kv):
            yield

    def _block_of(self, scales: KvScales) -> int:
        prefix = f"{self.document.map.block_prefix}."
        return int(scales.name.removeprefix(prefix).partition(".")[0])
