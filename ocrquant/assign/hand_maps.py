"""Plans that people drew up by hand for published checkpoints, as plans for the groups at hand.

Knows kinds of groups and positions of blocks. What a map does not mention follows its rule for the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ocrquant.artifacts import GroupRecord
from ocrquant.assign.problem import nearest_open
from ocrquant.formats import Precision

__all__ = ["HAND_MAPS", "hand_plans"]

BF16, FP8, NVFP4 = Precision.BF16, Precision.FP8, Precision.NVFP4

Rule = Callable[[GroupRecord, int], Precision]
"""A group and the number of decoder blocks -> its format."""

_LAST_BLOCKS = 8, 64
"""Blocks 56 to 63 of 64 keep the wider format: the last eighth, in models of another depth."""


def _is_mlp(group: GroupRecord) -> bool:
    return group.kind.startswith(("mlp", "moe")) or "expert" in group.kind


def _is_in_last_blocks(group: GroupRecord, num_blocks: int) -> bool:
    last, of = _LAST_BLOCKS
    return group.block is not None and group.block * of >= num_blocks * (of - last)


def _unsloth(group: GroupRecord, num_blocks: int) -> Precision:
    return NVFP4 if _is_mlp(group) and not _is_in_last_blocks(group, num_blocks) else FP8


def _nvidia(group: GroupRecord, num_blocks: int) -> Precision:
    del num_blocks
    return NVFP4 if _is_mlp(group) or group.kind == "lm_head" else FP8


def _nvidia_experts(group: GroupRecord, num_blocks: int) -> Precision:
    del num_blocks
    return NVFP4 if "expert" in group.kind else FP8


def _redhat(group: GroupRecord, num_blocks: int) -> Precision:
    del num_blocks
    # llm-compressor's recipes leave the head alone.
    return BF16 if group.kind.startswith("gdn") or group.kind == "lm_head" else NVFP4


HAND_MAPS: Mapping[str, Rule] = {
    "unsloth/Qwen3.6-27B-NVFP4": _unsloth,
    "nvidia/Qwen3.6-27B-NVFP4": _nvidia,
    "nvidia/Qwen3.5-397B-A17B-NVFP4-V2": _nvidia_experts,
    "RedHatAI/Qwen3.6-35B-A3B-NVFP4": _redhat,
}
"""Rules by the checkpoint that follows them, from its quantization config; formats of weights only."""


def hand_plans(groups: Sequence[GroupRecord]) -> dict[str, dict[str, Precision]]:
    """Every map as a plan, by the name of its checkpoint.

    A group that a format is closed to takes the next one up that is open, else down. A map that says the same
    as an earlier one for these groups is left out, and so is one that gives all of them one format, which is
    a uniform plan.

    Args:
        groups: Groups with what is open to them.
    """
    num_blocks = max((group.block + 1 for group in groups if group.block is not None), default=0)
    found: dict[str, dict[str, Precision]] = {}
    for name, rule in HAND_MAPS.items():
        wanted = {group.name: rule(group, num_blocks) for group in groups}
        plan = {group.name: nearest_open(group.precisions, wanted[group.name]) for group in groups}
        if len(set(wanted.values())) > 1 and plan not in found.values():
            found[name] = plan
    return found
