"""FP8 E4M3: scales per tensor, per output channel and per token; encode, decode, and both at once.

A stored value is ``code * decode_scale``. Codes are ``torch.float8_e4m3fn``: largest magnitude 448, no
infinity, NaN is 0x7F. Rounding is to nearest with ties to the even code, and everything beyond 448,
infinities included, saturates (``cvt.rn.satfinite.e4m3x2.f32`` of the PTX manual). NaN stays NaN. Scales
divide before rounding, as compressed-tensors does. Knows nothing of blocks, layers or files; nothing here is
differentiable.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ocrquant.errors import ShapeError
from ocrquant.formats.precision import E4M3_MAX, SMALLEST_DECODE_SCALE
from ocrquant.formats.rounding import E4M3, map_rows, require_finite, round_to_grid_, tensor_amax

__all__ = [
    "E4M3_MAX",
    "TOKEN_SCALE_FLOOR",
    "clipped_elements",
    "decode",
    "encode",
    "quantize_dequantize",
    "static_decode_scale",
    "token_decode_scale",
    "weight_decode_scale",
]

TOKEN_SCALE_FLOOR = 1.0 / (E4M3_MAX * 512.0)
"""Smallest dynamic per-token decode scale in vLLM's and FBGEMM's kernels: a token under 1/512 uses part of
the grid."""


def static_decode_scale(amax: Tensor) -> Tensor:
    """Decode scale that puts ``amax`` at 448.

    Args:
        amax: Largest magnitudes, any shape, any float dtype, finite.

    Returns:
        float32 of the same shape (a scalar becomes [1]), every value finite and > 0: where ``amax / 448`` is
        below ``SMALLEST_DECODE_SCALE`` (all-zero channels among them) the scale is 1, and such values encode
        to zero.

    Raises:
        WeightValueError: ``amax`` holds NaN or Inf.
    """
    require_finite("largest magnitude for an FP8 scale", amax)
    scale = torch.atleast_1d(amax.float() / E4M3_MAX)
    return torch.where(scale < SMALLEST_DECODE_SCALE, 1.0, scale)


def weight_decode_scale(weight: Tensor, per: Literal["tensor", "channel"]) -> Tensor:
    """Decode scale of a weight [out, in]: float32 [1] per tensor, [out, 1] per output channel.

    Raises:
        WeightValueError: The weight holds NaN or Inf.
    """
    if per == "tensor":
        return static_decode_scale(tensor_amax(weight))
    low, high = weight.amin(dim=-1, keepdim=True), weight.amax(dim=-1, keepdim=True)
    return static_decode_scale(torch.maximum(-low, high))


def token_decode_scale(x: Tensor) -> Tensor:
    """Dynamic decode scale of each token.

    Args:
        x: Activations [..., in], any float dtype.

    Returns:
        float32 [..., 1]: ``max(amax / 448, TOKEN_SCALE_FLOOR)``, the rule of the kernels that serve this
        scheme. An infinite activation gives an infinite scale and a NaN a NaN scale, so a broken token shows.
    """
    return (x.abs().amax(dim=-1, keepdim=True).float() / E4M3_MAX).clamp_(min=TOKEN_SCALE_FLOOR)


@torch.no_grad()
def encode(x: Tensor, decode_scale: Tensor) -> Tensor:
    """Rounds ``x / decode_scale`` to E4M3.

    Args:
        x: [..., in], any float dtype; computed in float32.
        decode_scale: float32, one value, or one for each row: [..., 1].

    Returns:
        float8_e4m3fn codes of the shape of ``x``, contiguous.

    Raises:
        ShapeError: The scale is neither one value nor one a row.
    """
    return map_rows(_encode, *_rows(x, decode_scale), torch.float8_e4m3fn).view(x.shape)


@torch.no_grad()
def decode(codes: Tensor, decode_scale: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Multiplies float8_e4m3fn codes [..., in] by their scale in float32, then rounds to ``dtype``.

    Raises:
        ShapeError: The scale is neither one value nor one a row.
    """
    return map_rows(_decode, *_rows(codes, decode_scale), dtype).view(codes.shape)


@torch.no_grad()
def quantize_dequantize(x: Tensor, decode_scale: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """What comes back from ``decode(encode(x))``, computed without codes.

    Equal to that composition for every input, save that a negative value that rounds to zero comes back as
    +0.

    Args:
        x: Weights or activations [..., in], any float dtype; computed in float32.
        decode_scale: float32, one value, or one for each row: [..., 1].
        dtype: Dtype of the result; that of ``x`` when left out.

    Raises:
        ShapeError: The scale is neither one value nor one a row.
    """
    return map_rows(_simulate, *_rows(x, decode_scale), dtype or x.dtype).view(x.shape)


@torch.no_grad()
def clipped_elements(x: Tensor, decode_scale: Tensor) -> Tensor:
    """Number of elements beyond 448 decode scales, which encoding clips; int64 scalar, device of ``x``."""
    rows, scales = _rows(x, decode_scale)
    return (rows.abs().float() > scales * E4M3_MAX).sum()


def _encode(rows: Tensor, scales: Tensor) -> Tensor:
    # Without the clamp some versions and devices convert what lies beyond 448 to NaN.
    return (rows.float() / scales).clamp_(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)


def _decode(rows: Tensor, scales: Tensor) -> Tensor:
    return rows.float() * scales


def _simulate(rows: Tensor, scales: Tensor) -> Tensor:
    return round_to_grid_(rows.float() / scales, E4M3).mul_(scales)


def _rows(x: Tensor, decode_scale: Tensor) -> tuple[Tensor, Tensor]:
    """``x`` as contiguous [rows, in] and its scale as [1, 1] or [rows, 1]."""
    num_rows = x.shape[:-1].numel()
    if decode_scale.numel() != 1 and decode_scale.shape != (*x.shape[:-1], 1):
        raise ShapeError(
            f"FP8 decode scale for a tensor of shape {list(x.shape)}",
            expected=f"one value, or one a row: {[*x.shape[:-1], 1]}",
            given=list(decode_scale.shape),
            fix="reduce the last dimension with keepdim",
        )
    return x.reshape(num_rows, x.shape[-1]).contiguous(), decode_scale.float().reshape(-1, 1)
