"""NVFP4: E2M1 elements in blocks of 16 along the input dimension, E4M3 block scales, one FP32 scale a tensor.

A stored value is ``code * block_scale / encode_scale`` (``nvfp4_scales`` has the scales and both conventions
of the global one). E2M1 magnitudes are 0, 0.5, 1, 1.5, 2, 3, 4, 6 (codes 0 to 7, bit 3 the sign), rounded to
nearest with ties to the even code; everything beyond 6, infinities included, saturates, and NaN has the code
of +6 (``cvt.rn.satfinite.e2m1x2.f32`` of the PTX manual). Elements are rounded against the *rounded* block
scale and divided by ``block_scale / encode_scale`` in float32, in that order, as compressed-tensors does.

Knows nothing of layers or files; nothing here is differentiable.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from ocrquant.errors import ShapeError
from ocrquant.formats.nvfp4_scales import (
    block_decode_scale,
    clipped_blocks,
    exchangeable_scale,
    from_modelopt,
    global_decode_scale,
    global_encode_scale,
    scaled_amax,
    shared_global_encode_scale,
    to_blocks,
    to_modelopt,
)
from ocrquant.formats.precision import E2M1_MAX, E4M3_MAX, E4M3_SMALLEST, NVFP4_BLOCK_SIZE, Precision
from ocrquant.formats.rounding import (
    E2M1,
    binade,
    map_rows,
    require_finite,
    round_to_grid_,
    snap_,
    tensor_amax,
)

__all__ = [
    "BLOCK_SIZE",
    "NVFP4Weight",
    "block_decode_scale",
    "clipped_blocks",
    "decode",
    "encode",
    "exchangeable_scale",
    "from_modelopt",
    "global_decode_scale",
    "global_encode_scale",
    "pack",
    "quantize",
    "quantize_dequantize",
    "quantize_dequantize_activation",
    "shared_global_encode_scale",
    "to_modelopt",
    "unpack",
]

BLOCK_SIZE = NVFP4_BLOCK_SIZE

# Sign, exponent and first mantissa bit of 1.5 * 2**22, which is what snap_ adds in the binade of 1.
_SNAP_LEAD = 299
_FLOAT32_MAX = torch.finfo(torch.float32).max
_SMALLEST_NORMAL = torch.finfo(torch.float32).tiny


@dataclass(frozen=True, slots=True, kw_only=True)
class NVFP4Weight:
    """A weight [out, in] in the form that checkpoints store.

    Attributes:
        packed: uint8 [out, in / 2], even column in the low nibble.
        block_scale: float8_e4m3fn [out, in / 16], every value finite and > 0.
        encode_scale: float32 [1], finite and > 0: decoding divides by it.
    """

    precision: ClassVar[Precision] = Precision.NVFP4

    packed: Tensor
    block_scale: Tensor
    encode_scale: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """``(out, in)`` of the weight, not of its packed form."""
        out_features, half = self.packed.shape
        return out_features, 2 * half

    @property
    def nbytes(self) -> int:
        """Bytes on disk, all scales included."""
        return self.packed.nbytes + self.block_scale.nbytes + self.encode_scale.nbytes

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The weight [out, in] that a reader of the checkpoint computes with."""
        return decode(unpack(self.packed), self.block_scale, self.encode_scale, dtype)


def quantize(
    weight: Tensor, encode_scale: Tensor | None = None, block_scale: Tensor | None = None
) -> NVFP4Weight:
    """A weight in stored form.

    Args:
        weight: [out, in], any float dtype, finite.
        encode_scale: Global scale float32 [1], for instance one shared by a fused layer; that of the weight's
            own largest magnitude when left out.
        block_scale: float8_e4m3fn [out, in / 16], for instance from a search; ``block_decode_scale`` when
            left out.

    Raises:
        WeightValueError: The weight holds NaN or Inf.
        ShapeError: The width is not a multiple of 16, or the scales do not fit it.
    """
    require_finite("weight to quantize", weight)
    if encode_scale is None:
        encode_scale = global_encode_scale(tensor_amax(weight))
    if block_scale is None:
        block_scale = block_decode_scale(weight, encode_scale)
    codes = encode(weight, block_scale, encode_scale)
    return NVFP4Weight(packed=pack(codes), block_scale=block_scale, encode_scale=encode_scale)


@torch.no_grad()
def encode(x: Tensor, block_scale: Tensor, encode_scale: Tensor) -> Tensor:
    """Rounds ``x / (block_scale / encode_scale)`` to E2M1.

    Args:
        x: [..., in], any float dtype; computed in float32.
        block_scale: [..., in / 16], float8_e4m3fn or float32 holding E4M3 values; a scale of zero gives zero
            codes.
        encode_scale: float32 [1].

    Returns:
        uint8 [..., in], one code 0..15 a byte; -0 and negative values that round to zero have code 8.

    Raises:
        ShapeError: ``in`` is not a multiple of 16, or the scales do not fit it.
    """

    def codes_of(blocks: Tensor, scales: Tensor) -> Tensor:
        values = blocks.float().nan_to_num(nan=_FLOAT32_MAX)
        decode_scale = scales.float() / encode_scale
        divisor = decode_scale.masked_fill(decode_scale == 0, torch.inf)
        magnitude = values.div(divisor).abs_().clamp_(max=E2M1_MAX)
        bits = snap_(magnitude, E2M1, binade(magnitude, E2M1)).view(torch.int32)
        # Low bits: grid steps within the binade. Lead bits: two codes for each binade above that of 1. A NaN,
        # which only a NaN scale leaves here, comes out larger than any code.
        code = (bits & 7).add_(bits >> 22).sub_(_SNAP_LEAD).clamp_(max=7)
        return code.add_((values.view(torch.int32) >> 28).bitwise_and_(8))

    return map_rows(codes_of, to_blocks(x), _block_scales(block_scale, x), torch.uint8).view(x.shape)


@torch.no_grad()
def decode(
    codes: Tensor, block_scale: Tensor, encode_scale: Tensor, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Multiplies code values by ``block_scale / encode_scale`` in float32, then rounds to ``dtype``.

    Args:
        codes: uint8 [..., in], one code 0..15 a byte.
        block_scale: [..., in / 16].
        encode_scale: float32 [1].
        dtype: Dtype of the result.

    Raises:
        ShapeError: ``in`` is not a multiple of 16, or the scales do not fit it.
    """

    def values_of(blocks: Tensor, scales: Tensor) -> Tensor:
        code = blocks.to(torch.int16)
        # Sign, exponent and mantissa bits moved to where float16 has them; its subnormals hold code 1.
        # Exponent biases 15 and 1 differ by 14. Faster than a table of the 16 values: 4.7 against 8.0
        # ns an element (128 Ki of them, one busy core of a Xeon at 2.1 GHz, best of 41, 2026-11-30).
        half = ((code << 12) | (code << 9)).bitwise_and_(-0x7200).view(torch.float16)
        return half.float().mul_(2.0**14).mul_(scales.float() / encode_scale)

    return map_rows(values_of, to_blocks(codes), _block_scales(block_scale, codes), dtype).view(codes.shape)


def pack(codes: Tensor) -> Tensor:
    """Two codes a byte: [..., in] to uint8 [..., in / 2], even column in the low nibble.

    Raises:
        ShapeError: The width is odd.
    """
    if codes.shape[-1] % 2:
        raise ShapeError(
            f"codes of shape {list(codes.shape)}",
            expected="an even width",
            given=codes.shape[-1],
            fix="pack whole blocks of 16",
        )
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack(packed: Tensor) -> Tensor:
    """Inverse of ``pack``: uint8 [..., in / 2] to one code a byte, [..., in]."""
    return torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(-2)


@torch.no_grad()
def quantize_dequantize(
    x: Tensor, encode_scale: Tensor, block_scale: Tensor | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """What comes back from ``decode(encode(x))`` with stored block scales, computed without codes.

    Equal to that composition for every finite input, save that a negative value that rounds to zero comes
    back as +0. NaN stays NaN.

    Args:
        x: Weight [..., in], any float dtype; computed in float32.
        encode_scale: float32 [1].
        block_scale: [..., in / 16], float8_e4m3fn or float32 holding E4M3 values; ``block_decode_scale`` of
            ``x`` when left out.
        dtype: Dtype of the result; that of ``x`` when left out.

    Raises:
        ShapeError: ``in`` is not a multiple of 16, or the scales do not fit it.
    """
    if block_scale is None:
        return _simulate(x, encode_scale, E4M3_SMALLEST, dtype)

    def values_of(blocks: Tensor, scales: Tensor) -> Tensor:
        return _round(blocks.float(), scales.float() / encode_scale)

    return map_rows(values_of, to_blocks(x), _block_scales(block_scale, x), dtype or x.dtype).view(x.shape)


@torch.no_grad()
def quantize_dequantize_activation(
    x: Tensor, encode_scale: Tensor, dtype: torch.dtype | None = None
) -> Tensor:
    """What the next matrix product sees of activations quantized on the fly.

    The global scale is calibrated, block scales follow the data as ``E4M3(G * (amax_block / 6))``. Here a
    scale may round to zero, and then the block is zero, as in vLLM's kernel. A block beyond the calibrated
    amax saturates (count them with ``clipped_blocks``). A NaN makes its whole block NaN.

    Args:
        x: Activations [..., in]; pass float32 where the serving kernel quantizes float32.
        encode_scale: Calibrated global scale, float32 [1].
        dtype: Dtype of the result; that of ``x`` when left out.

    Raises:
        ShapeError: ``in`` is not a multiple of 16.
    """
    return _simulate(x, encode_scale, 0.0, dtype)


def _simulate(x: Tensor, encode_scale: Tensor, floor: float, dtype: torch.dtype | None) -> Tensor:
    function = partial(_simulate_blocks, floor=floor)
    return map_rows(function, to_blocks(x), encode_scale.view(1, 1), dtype or x.dtype).view(x.shape)


def _simulate_blocks(blocks: Tensor, encode_scale: Tensor, *, floor: float) -> Tensor:
    values = blocks.float()
    scratch = values.abs()
    scales = scaled_amax(scratch, encode_scale).clamp_(floor, E4M3_MAX)
    # To the storage dtype and back is slow for an element, but here there is one to 16 elements.
    return _round(values, scales.to(torch.float8_e4m3fn).float().div_(encode_scale), scratch)


def _round(values: Tensor, decode_scale: Tensor, out: Tensor | None = None) -> Tensor:
    # Where the scale is zero, any finite quotient will do: the product with the scale makes it zero again.
    quotient = torch.div(values, decode_scale.clamp(min=_SMALLEST_NORMAL), out=out)
    return round_to_grid_(quotient, E2M1).mul_(decode_scale)


def _block_scales(block_scale: Tensor, x: Tensor) -> Tensor:
    """Block scales as [blocks, 1]."""
    expected = [*x.shape[:-1], x.shape[-1] // BLOCK_SIZE]
    if list(block_scale.shape) != expected:
        raise ShapeError(
            f"NVFP4 block scales for a tensor of shape {list(x.shape)}",
            expected=expected,
            given=list(block_scale.shape),
            fix="pass one scale for each 16 input elements",
        )
    return block_scale.reshape(-1, 1)
