"""What every producer does last: finished rows go into each form that its operand asks for, in plain torch.

Knows the three forms of an operand and that all of them come from the row *after* its rounding to the
activation dtype: quantizing the unrounded row would be another, measurably worse definition. The rules of the
codes and scales are those of ``formats``; nothing of them is repeated here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ocrquant.formats import fp8, nvfp4
from ocrquant.formats.nvfp4_scales import scaled_amax, to_blocks
from ocrquant.formats.precision import E4M3_MAX, NVFP4_BLOCK_SIZE
from ocrquant.formats.scale_layout import swizzle
from ocrquant.kernels.operand import Operand

__all__ = ["addresses", "emit", "wide"]


def wide(x: Tensor) -> Tensor:
    """``x`` in the dtype that ops compute in: float32, or float64 where the activations are float64."""
    return x if x.dtype == torch.float64 else x.float()


def emit(y: Tensor, out: Operand) -> None:
    """Writes ``y`` into every form that ``out`` holds.

    FP8: one dynamic scale a row, ``formats.fp8.token_decode_scale``, or the calibrated one of ``out``; either
    divides before the rounding.
    NVFP4: the calibrated global scale G of ``out``, block scales ``E4M3(clamp(G * (amax / 6), 0, 448))``,
    which may round to zero, and codes of ``y / (block scale / G)``. A NaN makes its row's FP8 scale and its
    block's NVFP4 scale NaN and touches no other row.

    Args:
        y: Finished rows [R, w], rounded to the activation dtype.
        out: Operand of R rows and width w.
    """
    if out.plain is not None:
        out.plain.copy_(y)
    if out.fp8 is not None:
        if out.fp8_static is not None:
            scale = out.fp8_static
        else:
            assert out.fp8_scale is not None
            scale = fp8.token_decode_scale(y)
            out.fp8_scale.copy_(scale[:, 0])
        out.fp8.copy_(fp8.encode(y, scale).view(torch.uint8))
    if out.nvfp4 is not None:
        assert out.encode_scale is not None
        amax = scaled_amax(to_blocks(y).float().abs(), out.encode_scale.view(1, 1))
        scales = (
            amax.clamp_(0.0, E4M3_MAX).to(torch.float8_e4m3fn).view(len(y), y.shape[1] // NVFP4_BLOCK_SIZE)
        )
        if out.nvfp4_swizzled is not None:
            out.nvfp4_swizzled.copy_(swizzle(scales.view(torch.uint8)))
        else:
            assert out.nvfp4_scale is not None
            out.nvfp4_scale.copy_(scales.view(torch.uint8))
        out.nvfp4.copy_(nvfp4.pack(nvfp4.encode(y, scales, out.encode_scale)))


def addresses(out: Operand) -> tuple[int, ...]:
    """An operand as native producers take it: the addresses of its forms, 0 for one that is not wanted."""
    parts = (out.plain, out.fp8, out.fp8_scale, out.nvfp4, out.nvfp4_scale, out.encode_scale)
    return tuple(0 if part is None else part.data_ptr() for part in parts)
