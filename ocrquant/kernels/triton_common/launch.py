"""Launches of Triton kernels: on a GPU, in the interpreter, or into a list of what would have been launched.

A recorded launch is what ahead-of-time compilation needs: it is taken from the very wrappers that run on a
GPU, given tensors without memory. Knows launches; knows no op.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from triton import knobs

from ocrquant.errors import ShapeError

__all__ = [
    "Launch",
    "has_e2m1_conversion",
    "launch",
    "next_power",
    "recording",
    "repair_if_interpreted",
    "require_power",
]

_BLACKWELL = 100


def repair_if_interpreted() -> None:
    """Puts the interpreter's casts right where kernels run in it."""
    if knobs.runtime.interpret:
        from ocrquant.kernels.triton_common.interpreter import repair

        repair()


# Every kernel is launched from here, also one that uses nothing of `numerics`.
repair_if_interpreted()


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch.

    Attributes:
        kernel: The jitted function.
        grid: Programs by dimension.
        arguments: In the order of the kernel's parameters.
        constants: Its ``constexpr`` parameters.
        num_warps: Warps of a program.
        fuses: Whether a product and a sum may become one rounding.
    """

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    constants: Mapping[str, Any]
    num_warps: int
    fuses: bool


class _Recorder:
    def __init__(self, arch: int) -> None:
        self.arch = arch
        self.launches: list[Launch] = []


_recorders: list[_Recorder] = []


@contextmanager
def recording(arch: int) -> Iterator[list[Launch]]:
    """Notes what would be launched on an architecture such as 90 or 100 instead of launching it."""
    recorder = _Recorder(arch)
    _recorders.append(recorder)
    try:
        yield recorder.launches
    finally:
        _recorders.pop()


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    *arguments: Any,
    num_warps: int = 4,
    fuses: bool = False,
    **constants: Any,
) -> None:
    """Runs a kernel over a grid; an empty grid is no launch.

    Args:
        kernel: A function under ``triton.jit``.
        grid: Programs by dimension.
        arguments: Tensors, numbers, None for a tensor that is not there, and tuples of these.
        num_warps: Warps of a program.
        fuses: Whether a product and a sum may become one rounding: not in ops that are defined by theirs.
        constants: The kernel's ``constexpr`` parameters.
    """
    if not all(grid):
        return
    if _recorders:
        noted = Launch(kernel, grid, arguments, constants, num_warps, fuses)
        _recorders[-1].launches.append(noted)
        return
    kernel[grid](*arguments, **constants, num_warps=num_warps, enable_fp_fusion=fuses)


def has_e2m1_conversion(device: torch.device) -> bool:
    """Whether kernels on a device may use the conversion to E2M1 (Blackwell and later)."""
    if _recorders:
        return _recorders[-1].arch >= _BLACKWELL
    return not knobs.runtime.interpret and _capability(device) >= _BLACKWELL


@cache
def _capability(device: torch.device) -> int:
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def next_power(number: int) -> int:
    """The smallest power of two that is not below a number."""
    return 1 << max(0, number - 1).bit_length()


def require_power(op: str, name: str, number: int, *, least: int = 16) -> None:
    """Refuses a size that is no power of two: tiles in Triton are.

    Raises:
        ShapeError: It is none, or below `least`.
    """
    if number < least or number & (number - 1):
        raise ShapeError(
            f"op {op} in Triton: {name}",
            expected=f"a power of two, at least {least}",
            given=number,
            fix="set OCRQUANT_KERNELS=reference",
        )
