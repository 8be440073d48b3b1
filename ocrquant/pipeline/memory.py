"""Peak memory of each stage, foreseen from shapes and counts, and whether a model is loaded as a whole.

Knows what each stage holds at its worst moment. Does not know how it computes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from ocrquant.adapters import ModelMap, SearchSpace
from ocrquant.calibrate.sites import Site, sites_of
from ocrquant.formats import Precision
from ocrquant.pages import Page
from ocrquant.pipeline.machine import available_bytes, resident_bytes
from ocrquant.recipe import Recipe

__all__ = ["Workload", "choose_residency", "stage_memory", "workload_of"]

Residency = Literal["whole", "block"]

USABLE = 0.8
"""Part of the free memory that a whole model may take; the rest is for activations and other programs."""

WIDENED = 2
"""Scores are computed in float32, which takes a bf16 weight twice its bytes."""

BF16_BYTES, FP32_BYTES, FP64_BYTES = 2, 4, 8

LATER_BYTES = 60 << 20
"""What a process takes beside tensors from the check on: modules that are imported then, thread stacks, code
pages of kernels. Measured on an x86-64 CPU with torch 2.13 (2026-11-30)."""

ROUNDING_BYTES_PER_WEIGHT = 38
"""Of the linears that read one tensor: all in float32, temporaries of one, and the stored forms. Measured on
47 million weights, rounded to nearest in two formats: 1.78 GB (2026-11-30)."""

KEPT_PART_BYTES = 64 << 20
KEPT_LOGITS_BYTES = 1 << 30
PART_ELEMENTS = 1 << 25
LOGITS_BUFFERS = 6
HIDDEN_BYTES = 1 << 30
"""Limits that loading and scoring keep to, in `adapters.residency` and `sensitivity.replay` and `setup`."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Tokens that go through the model together.

    Attributes:
        statistics: Longest batch of the statistics and of the rounding.
        scored: Longest batch of the scores.
        judged: Judged tokens in the longest batch of the scores.
    """

    statistics: int
    scored: int
    judged: int


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Bytes of the parts of a model in bf16, as far as they are loaded.

    Attributes:
        whole: Everything.
        block: The largest decoder block.
        around: Large parts around the decoder that come and go, by name.
        kept: Small parts that stay.
        widths: Sum of inputs and outputs of the linears of the widest block.
        hidden: Width of the decoder.
        vocabulary: Rows of the head.
    """

    whole: int
    block: int
    around: Mapping[str, int]
    kept: int
    widths: int
    hidden: int
    vocabulary: int

    @classmethod
    def of(cls, model_map: ModelMap) -> _Sizes:
        blocks: dict[int, int] = {}
        parts: dict[str, int] = {}
        prefix = f"{model_map.block_prefix}."
        vision = tuple(f"{name}." for name in model_map.vision)
        for name, tensor in model_map.tensors.items():
            if name.startswith(prefix):
                index = int(name[len(prefix) :].split(".")[0])
                blocks[index] = blocks.get(index, 0) + tensor.num_bytes
            elif name not in model_map.mtp:
                part = "vision" if name.startswith(vision) else name
                parts[part] = parts.get(part, 0) + tensor.num_bytes
        linears = [
            linear for group in (*model_map.groups, *model_map.kept_groups) for linear in group.linears
        ]
        widths: dict[int, int] = {}
        for linear in linears:
            if linear.block is not None:
                width = linear.in_features + linear.out_features
                widths[linear.block] = widths.get(linear.block, 0) + width
        hidden = min(group.in_features for group in model_map.groups if group.block is not None)
        table = max((t for t in model_map.tensors.values() if len(t.shape) == 2), key=lambda t: t.shape[0])
        return cls(
            whole=sum(blocks.values()) + sum(parts.values()),
            block=max(blocks.values()),
            around={name: size for name, size in parts.items() if size > KEPT_PART_BYTES},
            kept=sum(size for size in parts.values() if size <= KEPT_PART_BYTES),
            widths=max(widths.values()),
            hidden=hidden,
            vocabulary=table.shape[0],
        )

    @property
    def head(self) -> int:
        """Bytes of the head, tied or not, if it comes and goes."""
        return max((size for name, size in self.around.items() if name != "vision"), default=0)


def choose_residency(recipe: Recipe, model_map: ModelMap, device: torch.device) -> Residency:
    """What `model.residency` comes to on this machine."""
    if recipe.model.residency != "auto":
        return recipe.model.residency
    fits = WIDENED * model_map.num_bytes <= USABLE * available_bytes(device)
    return "whole" if fits else "block"


def workload_of(recipe: Recipe, pages: Sequence[Page], tokens_of: Mapping[str, tuple[int, int]]) -> Workload:
    """The longest batches of a recipe, padding included.

    Args:
        recipe: Says how many pages go together.
        pages: The selected pages.
        tokens_of: Name of a page -> its tokens, and those among them that are judged.
    """
    calibration = [page.id for page in pages if page.split == "calibration"]
    longest = max((tokens_of[name][0] for name in calibration), default=0)
    judged = sorted((tokens_of[name][1] for name in calibration), reverse=True)
    statistics = min(recipe.statistics.batch_size, len(calibration))
    scored = min(recipe.sensitivity.batch_size, recipe.sensitivity.num_pages or len(calibration))
    return Workload(statistics * longest, scored * longest, sum(judged[:scored]))


def stage_memory(
    recipe: Recipe,
    model_map: ModelMap,
    space: SearchSpace,
    work: Workload,
    device: torch.device,
    residency: Residency,
) -> dict[str, int]:
    """Peak bytes of each stage that runs the model.

    On a CPU the process itself counts: what it takes now, interpreter and libraries, is part of every figure.
    """
    base = resident_bytes() + LATER_BYTES if device.type == "cpu" else 0
    sizes = _Sizes.of(model_map)
    flow = 2 * work.statistics * sizes.widths * BF16_BYTES
    site = max(_site_bytes(site, recipe) for site in sites_of(model_map))
    if residency == "whole":
        statistics, rounding = sizes.whole + flow, sizes.whole + site
    else:
        # Before anything is measured every part is looked at once, the embedding and head too.
        largest = max(sizes.around.values(), default=0)
        statistics = sizes.kept + max(sizes.block + flow, largest)
        rounding = sizes.kept + max(sizes.block + site, largest)
    return {
        "statistics": base + statistics,
        "rounding": base + rounding,
        "sensitivity": base + _score_bytes(model_map, sizes, space, work, residency),
    }


def _site_bytes(site: Site, recipe: Recipe) -> int:
    """What rounding the readers of one tensor takes."""
    total = ROUNDING_BYTES_PER_WEIGHT * sum(group.num_weights for group in site.groups)
    if recipe.weights.is_nearest:
        return total
    square = site.in_features**2
    rows = 2 * 3072 * site.in_features * FP32_BYTES
    factors = 3 * FP64_BYTES * square if recipe.weights.gptq else 0
    # The factor in float32 is there while weights are rounded, its parts in float64 before.
    return FP32_BYTES * square + rows + max(factors, total + FP32_BYTES * square)


def _score_bytes(
    model_map: ModelMap, sizes: _Sizes, space: SearchSpace, work: Workload, residency: Residency
) -> int:
    """What scoring takes at its worst: a block with its candidates, the head, or the vision encoder."""
    part = min(work.judged, max(1, PART_ELEMENTS // sizes.vocabulary)) * sizes.vocabulary * FP32_BYTES
    logits = work.judged * sizes.vocabulary * FP32_BYTES
    kept = logits if logits <= KEPT_LOGITS_BYTES else 0
    hidden = min(HIDDEN_BYTES, (model_map.num_blocks + 1) * work.scored * sizes.hidden * FP32_BYTES)
    candidates: dict[int | None, int] = {}
    for group in model_map.groups:
        formats = len([p for p in space.choices[group.name] if p is not Precision.BF16])
        size = formats * group.num_weights * FP32_BYTES
        candidates[group.block] = candidates.get(group.block, 0) + size
    flow = 2 * work.scored * sizes.widths * FP32_BYTES
    in_block = max((size for block, size in candidates.items() if block is not None), default=0) + flow
    at_head = candidates.get(None, 0) + LOGITS_BUFFERS * part
    if residency == "whole":
        return WIDENED * sizes.whole + kept + hidden + max(in_block, at_head)
    around = WIDENED * sizes.kept + kept + hidden
    vision = WIDENED * sizes.around.get("vision", 0)
    return around + max(WIDENED * sizes.block + in_block, WIDENED * sizes.head + at_head, vision)
