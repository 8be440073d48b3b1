"""Memory, disk and time of a run, foreseen from shapes and counts; `memory` has the first.

Knows how often each stage passes over the pages. Time follows from floating-point operations and the speed of
one matrix product of this machine, measured for a moment; it is an estimate and says so.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ocrquant.adapters import ModelMap, SearchSpace
from ocrquant.formats import Precision
from ocrquant.pages import Page
from ocrquant.pipeline.machine import available_bytes
from ocrquant.pipeline.memory import choose_residency, stage_memory, workload_of
from ocrquant.recipe import Recipe

GIB = 1 << 30
BF16_BYTES = 2
FP32_BYTES = 4
# Measured on pico, one x86-64 core with AVX-512 BF16, 2026-11-30: a teacher-forced pass reaches about a tenth
# of the speed of a large matrix product; a decoder layer costs about two milliseconds of small operations a
# forward pass, however few tokens it has; GPTQ and scale search take 1.5 microseconds a weight and format at
# 870 GFLOP/s. The figure for GPUs is the launch cost of some sixty kernels and was not measured.
EFFICIENCY = 0.1
SECONDS_PER_LAYER = {"cpu": 2e-3, "cuda": 3e-4}
ROUNDING_FLOP_PER_WEIGHT = 1.3e5
# Pixels that become one token, and characters that do, where nothing better is known before loading.
PIXELS_PER_TOKEN = 32 * 32
CHARACTERS_PER_TOKEN = 2
# One layer of the runtime for a step of eight rows, and reading answers that are given costs as much: 208
# pages with 13,900 tokens took 8.2 and 6.9 s an arm on two cores of an AMD EPYC, family 23 model 1
# (2026-11-30).
ENGINE_SECONDS_PER_LAYER = {"cpu": 6e-4, "cuda": 1e-4}
ENGINE_ROWS = 8
PROBE_SIZE = 1024
PROBE_ROUNDS = 3


_RESIDENCY = {"whole": "the whole model in memory", "block": "one decoder block in memory at a time"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """What a run needs.

    Attributes:
        memory_bytes: Peak memory on the device, by stage.
        residency: Whether the whole model is in memory, or a block at a time.
        free_bytes: Memory of the device that is free now.
        disk: Bytes written into the run folder, by name of file or folder.
        seconds: Time, by stage.
        flop_per_s: Measured speed of a bf16 matrix product.
    """

    memory_bytes: Mapping[str, int]
    residency: str
    free_bytes: int
    disk: Mapping[str, int]
    seconds: Mapping[str, float]
    flop_per_s: float

    def lines(self) -> list[str]:
        """The estimates as text."""
        memory = ", ".join(f"{name} {size / GIB:.2f}" for name, size in self.memory_bytes.items())
        disk = ", ".join(f"{name} {size / GIB:.3f}" for name, size in self.disk.items())
        stages = ", ".join(f"{name} {_duration(value)}" for name, value in self.seconds.items())
        return [
            f"memory    about {max(self.memory_bytes.values()) / GIB:.2f} GiB at most ({memory}),"
            f" {_RESIDENCY[self.residency]}; {self.free_bytes / GIB:.2f} GiB are free now",
            f"disk      about {sum(self.disk.values()) / GIB:.3f} GiB ({disk})",
            f"time      about {_duration(sum(self.seconds.values()))} ({stages}),"
            f" from {self.flop_per_s / 1e9:.0f} GFLOP/s of a bf16 matrix product here",
        ]


def _duration(seconds: float) -> str:
    for limit, size, unit in ((90.0, 1.0, "s"), (5400.0, 60.0, "min"), (float("inf"), 3600.0, "h")):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}" if seconds >= 10 * size else f"{seconds / size:.1f} {unit}"
    raise AssertionError("the last limit is infinite")


def measured_speed(device: torch.device) -> float:
    """FLOP/s of one square bf16 matrix product on the device, best of a few."""
    a = torch.randn(PROBE_SIZE, PROBE_SIZE, device=device, dtype=torch.bfloat16)
    best = float("inf")
    for _ in range(PROBE_ROUNDS + 1):
        begin = time.perf_counter()
        torch.mm(a, a)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - begin)
    return 2.0 * PROBE_SIZE**3 / best


def _num_tokens(pages: Sequence[Page]) -> tuple[int, int]:
    """Tokens of a teacher-forced pass over the pages, and those among them that are generated."""
    generated = sum(len(page.text or "") // CHARACTERS_PER_TOKEN + 1 for page in pages)
    return generated + sum(page.width * page.height // PIXELS_PER_TOKEN for page in pages), generated


def _seconds(
    recipe: Recipe,
    model_map: ModelMap,
    space: SearchSpace,
    pages: Sequence[Page],
    device: torch.device,
    speed: float,
) -> dict[str, float]:
    """Seconds of each stage that runs the model."""
    calibration = [page for page in pages if page.split == "calibration"]
    heldout = [page for page in pages if page.split == "heldout"]
    scored = calibration[: recipe.sensitivity.num_pages]
    score_passes = _score_passes(recipe, space)
    batches = {
        "statistics": -(-len(calibration) // recipe.statistics.batch_size),
        "sensitivity": -(-len(scored) // recipe.sensitivity.batch_size),
    }
    # Tokens of teacher-forced passes, and forward passes whatever their length.
    work = {
        "statistics": (_num_tokens(calibration)[0] * 1.0, batches["statistics"] * 1.0),
        "rounding": (_num_tokens(calibration)[0] * 1.0, batches["statistics"] * 1.0),
        "sensitivity": (_num_tokens(scored)[0] * score_passes, batches["sensitivity"] * score_passes),
    }
    per_token = 2.0 * model_map.num_bytes / BF16_BYTES
    per_pass = model_map.num_blocks * SECONDS_PER_LAYER[device.type]
    seconds = {
        name: tokens * per_token / (speed * EFFICIENCY) + passes * per_pass
        for name, (tokens, passes) in work.items()
    }
    # Each arm reads the pages; each but the first is also shown the answers. A drafter reads them once more,
    # and how much faster is not known before.
    passes = 2 * len(recipe.evaluate.arms) - 1 + (recipe.evaluate.drafter is not None)
    all_tokens, generated = _num_tokens(heldout)
    steps = generated / ENGINE_ROWS * model_map.num_blocks * ENGINE_SECONDS_PER_LAYER[device.type]
    seconds["evaluate"] = passes * (steps + all_tokens * per_token / (speed * EFFICIENCY))
    if not recipe.weights.is_nearest:
        formats = len(recipe.sensitivity.candidates)
        seconds["rounding"] += (
            ROUNDING_FLOP_PER_WEIGHT * formats * model_map.num_weights / (speed * EFFICIENCY)
        )
    return seconds


def foresee(
    recipe: Recipe, model_map: ModelMap, space: SearchSpace, pages: Sequence[Page], device: torch.device
) -> Effort:
    """Estimates for a run on `device`."""
    speed = measured_speed(device)
    rounded = sum(
        group.weight_bytes(precision)
        for group in model_map.groups
        for precision in recipe.sensitivity.candidates
        if group.reason_against(precision) is None
    )
    largest_plan = sum(max(map(g.weight_bytes, space.choices[g.name])) for g in model_map.groups)
    residency = choose_residency(recipe, model_map, device)
    work = workload_of(recipe, pages, {page.id: _num_tokens([page]) for page in pages})
    return Effort(
        memory_bytes=stage_memory(recipe, model_map, space, work, device, residency),
        residency=residency,
        free_bytes=available_bytes(device),
        disk={
            "statistics.safetensors": sum(4 * linear.in_features for linear in model_map.linears())
            * FP32_BYTES,
            "rounding.safetensors": rounded,
            "checkpoint": model_map.num_bytes - BF16_BYTES * model_map.num_weights + largest_plan,
        },
        seconds=_seconds(recipe, model_map, space, pages, device, speed),
        flop_per_s=speed,
    )


def _score_passes(recipe: Recipe, space: SearchSpace) -> float:
    """Forward passes over the scored pages.

    Three for gradients; half the decoder for each group and format.
    """
    choices = sum(len(precisions) - (Precision.BF16 in precisions) for precisions in space.choices.values())
    # Screening measures about half of the choices.
    share = {"gradient": 0.0, "screened": 0.5}.get(recipe.sensitivity.score, 1.0)
    gradient = 3.0 + 0.2 * choices if recipe.sensitivity.score != "kl" else 0.0
    measured = 1.0 + 0.5 * share * choices if share else 0.0
    return gradient + measured
