"""Matrix products of operands with packed weights in plain torch: the definition.

Operands and weights enter as the values of their codes, for NVFP4 times their block scales. These are exact
in bf16, and their products in float32, so implementations differ in the order of the sum only.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ocrquant.formats import nvfp4
from ocrquant.formats.nvfp4 import NVFP4Weight
from ocrquant.formats.precision import NVFP4_BLOCK_SIZE, Precision
from ocrquant.formats.scale_layout import unswizzle
from ocrquant.formats.weights import FP8Weight
from ocrquant.kernels.linear.packed import PackedWeight, stored_form
from ocrquant.kernels.operand import Operand

__all__ = ["linear_reference", "row_scales"]


def linear_reference(x: Operand, weight: PackedWeight, out: Tensor, bias: Tensor | None = None) -> None:
    """Writes ``x @ weight.T + bias``, rounded once.

    A quantized weight reads the codes of its own precision where the operand has them, and its plain rows
    otherwise. Sums are float32 (float64 where x.plain or out is float64), then, in this order:

    - bf16 weight: nothing;
    - FP8 weight: times the token's scale, if x is in codes, times the scale of the output channel;
    - NVFP4 weight: times the reciprocal of the weight's global scale, multiplied before by the reciprocal of
      the operand's if x is in codes;
    - plus bias, then rounded to the dtype of out.

    Args:
        x: R rows of the width of the weight.
        weight: [n, w].
        out: [R, n]; of the dtype of x.plain where that is read, any float dtype otherwise, or float32. Rows
            may be strided.
        bias: [n] of the dtype of x.plain or float32, or None.
    """
    is_double = torch.float64 in (out.dtype, x.plain.dtype if x.plain is not None else None)
    wide = torch.float64 if is_double else torch.float32
    values, scale = _rows(x, weight.precision)
    sums = values.to(wide) @ _weight_values(weight, wide).T
    if weight.channel_scale is not None:
        channels = weight.channel_scale[: weight.out_features].to(wide)
        if scale is None:
            sums *= channels
        elif weight.precision is Precision.FP8:
            sums = sums * scale.to(wide)[:, None] * channels
        else:
            sums *= channels * scale.to(wide).reciprocal()
    if bias is not None:
        sums += bias.to(wide)
    out.copy_(sums)


def _rows(x: Operand, precision: Precision) -> tuple[Tensor, Tensor | None]:
    """Values of the rows, and the scale that their sums are multiplied by (FP8) or divided by (NVFP4)."""
    if precision is Precision.FP8 and x.fp8 is not None:
        scale = x.fp8_scale if x.fp8_static is None else x.fp8_static
        return x.fp8.view(torch.float8_e4m3fn).float(), scale
    if precision is Precision.NVFP4 and x.nvfp4 is not None:
        return _nvfp4_values(x.nvfp4, row_scales(x)), x.encode_scale
    assert x.plain is not None, "the contract looks for it"
    return x.plain, None


def row_scales(x: Operand) -> Tensor:
    """E4M3 block scales [R, w / 16] of NVFP4 rows, in whichever order they lie."""
    assert x.nvfp4 is not None, "asked of rows in NVFP4"
    if x.nvfp4_scale is not None:
        return x.nvfp4_scale.view(torch.float8_e4m3fn)
    assert x.nvfp4_swizzled is not None, "the contract looks for one of the two"
    rows, half = x.nvfp4.shape
    return unswizzle(x.nvfp4_swizzled, rows, 2 * half // NVFP4_BLOCK_SIZE).view(torch.float8_e4m3fn)


def _weight_values(weight: PackedWeight, dtype: torch.dtype) -> Tensor:
    stored = stored_form(weight)
    if isinstance(stored, FP8Weight):
        return stored.codes.to(dtype)
    if isinstance(stored, NVFP4Weight):
        return _nvfp4_values(stored.packed, stored.block_scale).to(dtype)
    return stored.to(dtype)


def _nvfp4_values(packed: Tensor, block_scale: Tensor) -> Tensor:
    one = torch.ones(1, device=packed.device)
    return nvfp4.decode(nvfp4.unpack(packed), block_scale, one)
