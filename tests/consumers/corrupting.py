"""Checkpoints with one linear damaged in a way that real exporters have damaged them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ocrquant.adapters import ModelMap
from ocrquant.formats import Precision

__all__ = ["CORRUPTIONS", "corrupted", "victim"]

NAMES: Mapping[str, Mapping[str, str]] = {
    "compressed-tensors": {"codes": "weight_packed", "global scale": "weight_global_scale"},
    "modelopt": {"codes": "weight", "global scale": "weight_scale_2"},
}


def _swap_nibbles(packed: Tensor) -> Tensor:
    return (packed >> 4) | (packed << 4)


def _ten_per_cent_off(scale: Tensor) -> Tensor:
    return scale * 1.1


CORRUPTIONS: Mapping[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "nibbles swapped": ("codes", _swap_nibbles),
    "global scale not inverted": ("global scale", torch.reciprocal),
    "global scale 10 % off": ("global scale", _ten_per_cent_off),
}
"""Name -> which tensor of an NVFP4 linear, and what becomes of it."""


def victim(model_map: ModelMap, groups: Mapping[str, Precision]) -> str:
    """The last NVFP4 linear of a block that is a group by itself: no other linear shares its scale."""
    alone = [
        group.linears[0].name
        for group in model_map.groups
        if groups[group.name] is Precision.NVFP4 and len(group.linears) == 1 and group.block is not None
    ]
    return alone[-1]


def corrupted(folder: Path, out: Path, file_format: str, linear: str, corruption: str) -> Path:
    """A copy of a checkpoint with one tensor changed."""
    shutil.copytree(folder, out)
    which, change = CORRUPTIONS[corruption]
    name = f"{linear}.{NAMES[file_format][which]}"
    (shard,) = (file for file in out.glob("*.safetensors") if name in load_file(file))
    tensors = load_file(shard)
    tensors[name] = change(tensors[name]).contiguous()
    save_file(tensors, shard, metadata={"format": "pt"})
    return out
