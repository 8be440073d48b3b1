"""The kernels' conversions by themselves, for tests and for preparing weights."""

from __future__ import annotations

import torch
from torch import Tensor

from ocrquant.formats.scale_layout import swizzled_size
from ocrquant.kernels.contract import Contract
from ocrquant.kernels.cuda.library import run

__all__ = ["convert", "swizzle_scales"]


def convert(x: Tensor, *, is_portable: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """bf16 bits, E4M3 codes and E2M1 codes of every element, saturated.

    Args:
        x: float32 [n].
        is_portable: Whether the integer forms run even where the architecture has an instruction.

    Returns:
        bf16 [n], uint8 [n], uint8 [n].

    Raises:
        ShapeError: x is not as described.
        DeviceError: The kernels cannot run on the device of x.
    """
    Contract("convert").tensor("x", x, "n", torch.float32)
    bf16 = torch.empty_like(x, dtype=torch.bfloat16)
    e4m3, e2m1 = (torch.empty_like(x, dtype=torch.uint8) for _ in range(2))
    written = (bf16.data_ptr(), e4m3.data_ptr(), e2m1.data_ptr())
    run("convert", x.device, x.data_ptr(), len(x), *written, int(is_portable))
    return bf16, e4m3, e2m1


def swizzle_scales(scale: Tensor) -> Tensor:
    """Block scales in the 128x4 layout, padding zero; see `formats.scale_layout.swizzle`.

    Args:
        scale: [R, s] of one-byte elements, row-major.

    Returns:
        uint8 [`swizzled_size`].

    Raises:
        ShapeError: scale is not as described.
        DeviceError: The kernels cannot run on the device of scale.
    """
    Contract("swizzle_scales").tensor("scale", scale, "R s", (torch.uint8, torch.float8_e4m3fn))
    rows, scales = scale.shape
    swizzled = torch.empty(swizzled_size(rows, scales), dtype=torch.uint8, device=scale.device)
    run("swizzle_scales", scale.device, scale.data_ptr(), rows, scales, swizzled.data_ptr())
    return swizzled
