"""Activations as operands of a matrix product: values on the grid, and what they are multiplied by after it.

The operand of an FP8 product is the code's own value, that of an NVFP4 product code times block scale. Both
have at most six significant bits, so they are exact in bf16 and so are their products in float32: only the
order of the sum is left to the device, as it is between real kernels. Scales of a token or a tensor follow in
float32 after the sum, as in the epilogue of the kernels that serve these formats. Knows nothing of layers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ocrquant.formats.fp8 import token_decode_scale
from ocrquant.formats.nvfp4_scales import scaled_amax, to_blocks
from ocrquant.formats.precision import E4M3_MAX
from ocrquant.formats.rounding import E2M1, E4M3, map_rows, round_to_grid_

__all__ = ["fp8_operand", "nvfp4_operand", "operand_dtype"]

_SMALLEST_NORMAL = torch.finfo(torch.float32).tiny


def operand_dtype(device: torch.device) -> torch.dtype:
    """Dtype that holds operands: bf16, or on a CPU float32, whose product comes out in float32."""
    return torch.float32 if device.type == "cpu" else torch.bfloat16


@torch.no_grad()
def fp8_operand(rows: Tensor) -> tuple[Tensor, Tensor]:
    """FP8 codes of activations, scaled by token.

    Args:
        rows: [rows, in], any float dtype; computed in float32.

    Returns:
        Values of the codes [rows, in] in ``operand_dtype``, and their decode scales, float32 [rows, 1].
    """
    scales = token_decode_scale(rows)
    return map_rows(_fp8_values, rows.contiguous(), scales, operand_dtype(rows.device)), scales


@torch.no_grad()
def nvfp4_operand(rows: Tensor, encode_scale: Tensor) -> Tensor:
    """NVFP4 codes of activations times their block scales, before the division by the global scale.

    Args:
        rows: [rows, in], any float dtype; computed in float32.
        encode_scale: Calibrated global scale of the input, float32 [1].

    Returns:
        [rows, in] in ``operand_dtype``.

    Raises:
        ShapeError: ``in`` is not a multiple of 16.
    """
    blocks, scale = to_blocks(rows), encode_scale.view(1, 1)
    return map_rows(_nvfp4_values, blocks, scale, operand_dtype(rows.device)).view(rows.shape)


def _fp8_values(rows: Tensor, scales: Tensor) -> Tensor:
    return round_to_grid_(rows.float() / scales, E4M3)


def _nvfp4_values(blocks: Tensor, encode_scale: Tensor) -> Tensor:
    values = blocks.float()
    scratch = values.abs()
    scales = scaled_amax(scratch, encode_scale).clamp_(0.0, E4M3_MAX).to(torch.float8_e4m3fn).float()
    # Where a scale rounds to zero any finite quotient will do: the product with the scale is zero again.
    divisor = (scales / encode_scale).clamp_(min=_SMALLEST_NORMAL)
    return round_to_grid_(torch.div(values, divisor, out=scratch), E2M1).mul_(scales)
