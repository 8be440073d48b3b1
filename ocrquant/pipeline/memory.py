"""How much memory there is, and whether a model is loaded as a whole or a block at a time.

Knows the machine. Knows nothing of what a stage does.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import torch

from ocrquant.adapters import ModelMap
from ocrquant.recipe import Recipe

__all__ = ["available_bytes", "choose_residency"]

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_USABLE = 0.8
"""Part of the free memory that a whole model may take; the rest is for activations and other programs."""

_WIDENED = 2
"""Scores are computed in float32, which takes a bf16 weight twice its bytes."""


def available_bytes(device: torch.device) -> int:
    """Memory that is free on a device, shared with the other processes of a run on this machine."""
    if device.type == "cuda":
        free: int = torch.cuda.mem_get_info(device)[0]
        return free
    return min(_free_of_machine(), _free_of_cgroup()) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def choose_residency(recipe: Recipe, model_map: ModelMap, device: torch.device) -> Literal["whole", "block"]:
    """What `model.residency` comes to on this machine."""
    if recipe.model.residency != "auto":
        return recipe.model.residency
    fits = _WIDENED * model_map.num_bytes <= _USABLE * available_bytes(device)
    return "whole" if fits else "block"


def _free_of_machine() -> int:
    try:
        fields = dict(line.split(":", 1) for line in _MEMINFO.read_text(encoding="ascii").splitlines())
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        # Other systems than Linux: half of what is built in.
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _free_of_cgroup() -> int:
    """What a container may still take (cgroup v2); page cache counts as free."""
    try:
        limit = int((_CGROUP / "memory.max").read_text(encoding="ascii"))
        used = int((_CGROUP / "memory.current").read_text(encoding="ascii"))
        stat = dict(line.split() for line in (_CGROUP / "memory.stat").read_text("ascii").splitlines())
        return limit - used + int(stat.get("file", 0))
    except (OSError, ValueError):  # no limit reads "max"
        return 1 << 62
