"""GPU architectures by the names that compilers give them, and what their matrix units multiply.

Knows capabilities. Asks a device for its own, and nothing else of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

import torch

__all__ = ["ARCHES", "Arch", "arch_of", "has_nvfp4_units"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arch:
    """One architecture.

    Attributes:
        name: As ``nvcc --gpu-architecture`` takes it.
        capability: Major and minor number.
        machines: Where it is found.
        has_fp8: Whether matrix units multiply E4M3.
        has_nvfp4: Whether they multiply E2M1 with a block scale for 16 elements.
    """

    name: str
    capability: tuple[int, int]
    machines: str
    has_fp8: bool
    has_nvfp4: bool


ARCHES: Mapping[str, Arch] = MappingProxyType(
    {
        name: Arch(name=name, capability=capability, machines=machines, has_fp8=fp8, has_nvfp4=nvfp4)
        for name, capability, machines, fp8, nvfp4 in (
            ("sm_80", (8, 0), "A100", False, False),
            ("sm_89", (8, 9), "L4, L40S, RTX 4090", True, False),
            ("sm_90a", (9, 0), "H100, H200", True, False),
            ("sm_100a", (10, 0), "B200, GB200", True, True),
            ("sm_103a", (10, 3), "B300, GB300", True, True),
            ("sm_120a", (12, 0), "RTX PRO 6000 Blackwell, RTX 5090", True, True),
        )
    }
)
"""Architectures by name."""


@cache
def arch_of(device: torch.device) -> Arch:
    """The architecture of a CUDA device; one that is not in the table counts as one without FP8 or FP4."""
    major, minor = torch.cuda.get_device_capability(device)
    for arch in ARCHES.values():
        if arch.capability == (major, minor):
            return arch
    name = f"sm_{major}{minor}"
    return Arch(name=name, capability=(major, minor), machines="?", has_fp8=False, has_nvfp4=False)


def has_nvfp4_units(device: torch.device) -> bool:
    """Whether a device multiplies NVFP4 codes, and so reads block scales in the 128x4 layout."""
    return device.type == "cuda" and arch_of(device).has_nvfp4
