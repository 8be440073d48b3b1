"""The two levels of NVFP4 scales: one FP32 scale a tensor, one E4M3 scale for each 16 elements.

Two conventions of the tensor's scale exist. compressed-tensors stores a divisor, ``G = 448 * 6 / amax``, here
called ``encode_scale``; ModelOpt stores the multiplier ``amax / (448 * 6)``. Everything in this package takes
the divisor.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ocrquant.errors import ShapeError
from ocrquant.formats.precision import (
    E2M1_MAX,
    E4M3_MAX,
    E4M3_SMALLEST,
    NVFP4_BLOCK_SIZE,
    SMALLEST_DECODE_SCALE,
)
from ocrquant.formats.rounding import map_rows, require_finite, tensor_amax

__all__ = [
    "block_decode_scale",
    "clipped_blocks",
    "exchangeable_scale",
    "from_modelopt",
    "global_decode_scale",
    "global_encode_scale",
    "scaled_amax",
    "shared_global_encode_scale",
    "to_blocks",
    "to_modelopt",
]

_RANGE = E4M3_MAX * E2M1_MAX

# Steps of 1 / G that are looked at for one that both conventions decode alike; the longest gap is 3328.
_NUM_STEPS = 1 << 12
_E4M3_SIGNIFICANDS = tuple(1 + eighths / 8 for eighths in range(8))

# A block at exactly the calibrated amax must not count as clipped, though G * (amax / 6) may round a little
# past 448.
_CLIPS_ABOVE = E4M3_MAX * (1.0 + 2.0**-20)


def global_encode_scale(amax: Tensor) -> Tensor:
    """Global scale of the compressed-tensors convention, ``448 * 6 / amax``.

    Args:
        amax: Largest magnitude of the tensor, or of all tensors that share the scale; one finite value.

    Returns:
        float32 [1], finite and > 0. An all-zero tensor, or one so small that the inverse would fall below
        ``SMALLEST_DECODE_SCALE``, gets 1 and encodes to zero; activations that were dead while calibrating
        then still have room up to 2688.

    Raises:
        WeightValueError: ``amax`` is NaN or infinite.
        ShapeError: ``amax`` is not one value.
    """
    amax = _one(amax, "amax")
    return torch.where(amax < _RANGE * SMALLEST_DECODE_SCALE, 1.0, _RANGE / amax)


def shared_global_encode_scale(*amaxes: Tensor) -> Tensor:
    """Global scale that the members of a fused layer share: that of the largest ``amax`` among them."""
    return global_encode_scale(tensor_amax(*amaxes))


def global_decode_scale(amax: Tensor) -> Tensor:
    """Global scale of the ModelOpt convention, ``amax / (448 * 6)``; float32 [1], under the same rules."""
    amax = _one(amax, "amax")
    return torch.where(amax < _RANGE * SMALLEST_DECODE_SCALE, 1.0, amax / _RANGE)


def exchangeable_scale(encode_scale: Tensor) -> Tensor:
    """The nearest scale at or below this one that both conventions decode alike, to the last bit.

    A reader of compressed-tensors divides a block scale by ``G``, one of ModelOpt multiplies it by the stored
    ``1 / G``; with an arbitrary ``G`` many of these differ in their last place. An E4M3 number has eight
    significands, so whether they agree for all of them depends on the significand of ``1 / G`` alone. Of the
    2**23 there are, 18 % agree; the longest way to the next one is 3328 steps, the second longest 563
    (counted over all of them, 2026-11-30).

    Args:
        encode_scale: float32 [1], finite and > 0.

    Returns:
        float32 [1], smaller by a factor of at most ``1 + 2**-11``, mostly by a few units in the last place;
        the scale itself where it is one of them, such as a power of two.

    Raises:
        ShapeError: The scale is not one value.
    """
    given = _one(encode_scale, "global scale")
    steps = torch.arange(_NUM_STEPS, dtype=torch.int32, device=given.device)
    decode_scales = (given.reciprocal().view(torch.int32) + steps).view(torch.float32)
    # The reciprocal of the first one may be a step above the scale itself.
    encode_scales = torch.cat([given, decode_scales.reciprocal()])
    decode_scales = torch.cat([decode_scales[:1], decode_scales])
    agree = (encode_scales.reciprocal() == decode_scales) & (decode_scales.reciprocal() == encode_scales)
    # A tensor, since torch computes a number over a tensor as its product with the reciprocal.
    significands = torch.tensor(_E4M3_SIGNIFICANDS, device=given.device).unsqueeze(1)
    agree &= (significands / encode_scales == significands * decode_scales).all(dim=0)
    agree &= encode_scales <= given
    assert agree.any(), "every gap is shorter than the steps looked at"
    return encode_scales[agree.int().argmax()].reshape(1)


def to_modelopt(encode_scale: Tensor) -> Tensor:
    """ModelOpt's scalar multiplier for a compressed-tensors [1] divisor.

    ``weight_scale_2`` for weights, ``input_scale`` for activations. The correctly rounded reciprocal; there
    and back again is at most one unit in the last place off, and exact for an ``exchangeable_scale``.
    """
    return _one(encode_scale, "global scale").reciprocal().reshape(())


def from_modelopt(global_scale: Tensor) -> Tensor:
    """Compressed-tensors [1] divisor for ModelOpt's scalar multiplier; the inverse of ``to_modelopt``."""
    return _one(global_scale, "global scale").reciprocal()


@torch.no_grad()
def block_decode_scale(x: Tensor, encode_scale: Tensor) -> Tensor:
    """Block scales to store: ``E4M3(G * (amax_block / 6))``, never below the smallest E4M3 number.

    The floor 2**-9 keeps every stored scale positive, and a block that would otherwise round to scale zero
    keeps what the grid can hold of it, as in ModelOpt. compressed-tensors puts 0.125 there, which flushes
    such a block to zero, and ModelOpt 1 for an all-zero block; with all three an all-zero block decodes to
    zero.

    Args:
        x: Weight [..., in], any float dtype.
        encode_scale: float32 [1].

    Returns:
        float8_e4m3fn [..., in / 16].

    Raises:
        ShapeError: ``in`` is not a multiple of 16.
    """
    scales = map_rows(_stored_scales, to_blocks(x), encode_scale.view(1, 1), torch.float8_e4m3fn)
    return scales.view(*x.shape[:-1], x.shape[-1] // NVFP4_BLOCK_SIZE)


@torch.no_grad()
def clipped_blocks(x: Tensor, encode_scale: Tensor) -> Tensor:
    """Number of blocks of ``x`` [..., in] whose largest magnitude exceeds that of the global scale.

    Their scale would pass 448 and saturates there, so their largest elements clip. int64 scalar on the device
    of ``x``.
    """
    return map_rows(_clips, to_blocks(x), encode_scale.view(1, 1), torch.bool).sum()


def _stored_scales(blocks: Tensor, encode_scale: Tensor) -> Tensor:
    return scaled_amax(blocks.float().abs(), encode_scale).clamp_(E4M3_SMALLEST, E4M3_MAX)


def _clips(blocks: Tensor, encode_scale: Tensor) -> Tensor:
    return scaled_amax(blocks.float().abs(), encode_scale) > _CLIPS_ABOVE


def scaled_amax(magnitudes: Tensor, encode_scale: Tensor) -> Tensor:
    """``G * (amax / 6)`` of non-negative float32 blocks [n, 16], as [n, 1], before any rounding to E4M3."""
    if magnitudes.device.type == "cpu" and len(magnitudes):
        # The pooling kernel vectorises over windows; amax over 16 elements falls to its scalar loop. 128 Ki
        # elements on one core of a Xeon at 2.1 GHz: 0.64 against 1.33 ns an element (2026-11-30).
        amax = F.max_pool1d(magnitudes.view(1, -1), NVFP4_BLOCK_SIZE).view(-1, 1)
    else:
        amax = magnitudes.amax(dim=-1, keepdim=True)
    return amax.div_(E2M1_MAX).mul_(encode_scale)


def to_blocks(x: Tensor) -> Tensor:
    """``x`` [..., in] as contiguous [blocks, 16].

    Raises:
        ShapeError: ``in`` is not a multiple of 16.
    """
    if x.ndim == 0 or x.shape[-1] % NVFP4_BLOCK_SIZE:
        raise ShapeError(
            f"NVFP4 tensor of shape {list(x.shape)}",
            expected=f"a width that is a multiple of {NVFP4_BLOCK_SIZE}",
            given=x.shape[-1] if x.ndim else "a scalar",
            fix="keep this layer in fp8 or bf16",
        )
    return x.reshape(-1, NVFP4_BLOCK_SIZE).contiguous()


def _one(value: Tensor, name: str) -> Tensor:
    """One finite value as float32 [1]."""
    if value.numel() != 1:
        raise ShapeError(
            f"NVFP4 {name}",
            expected="one value",
            given=list(value.shape),
            fix="reduce over the tensor first",
        )
    require_finite(f"NVFP4 {name}", value)
    return value.detach().float().reshape(1)
