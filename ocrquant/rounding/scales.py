"""Scales of a group's weights: those of rounding to nearest, and those that a search finds.

A search minimises the squared error of the weight, each column weighted by the second moment of its input
(the diagonal of the output error's Hessian; "imatrix" in llama.cpp and LLM Compressor). Knows grids and
scales; rounds nothing for good: ``stored`` does, with whatever scales and values it is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ocrquant.formats import Precision, fp8, nvfp4
from ocrquant.formats.rounding import E2M1, E4M3, Grid, round_to_grid_
from ocrquant.formats.weights import FP8Weight, NVFP4Weight, QuantizedWeight

__all__ = ["WeightScales", "nearest_scales", "searched_scales", "stored"]

# FP8 steps are relative, so only the phase of the scale within an octave and clipping matter: sixteenths of
# an octave that shrink the codes, and two that clip the largest.
_FP8_FACTORS = tuple(2.0 ** (step / 16.0) for step in (*range(1, 16), -1, -2))

# Neighbours of a block's own scale code. An E4M3 code is 1/16 to 1/8 of an octave: three codes down clip the
# largest element by up to a third, and five up put it at 4 instead of 6 (the "four over six" choice), where
# the grid is finer.
_BLOCK_CODE_STEPS = (1, -1, 2, -2, 3, -3, 4, 5)

# Below 1 the global scale leaves room above the largest block scale, so that this block may choose as well.
_GLOBAL_FACTORS = (1.0, 0.9375, 0.875, 0.75, 0.65625)

_LARGEST_CODE, _SMALLEST_CODE = 0x7E, 0x01

# Rows at once: bounds the float32 temporaries of a search over a vocabulary-wide weight.
_PIECE_ELEMENTS = 1 << 24


@dataclass(frozen=True, slots=True)
class WeightScales:
    """Scales of one weight [out, in], as stored.

    Attributes:
        precision: FP8 or NVFP4.
        decode_scale: FP8: float32 [out, 1]. None for NVFP4.
        block_scale: NVFP4: float8_e4m3fn [out, in / 16]. None for FP8.
        encode_scale: NVFP4: float32 [1], shared by the group. None for FP8.
    """

    precision: Precision
    decode_scale: Tensor | None = None
    block_scale: Tensor | None = None
    encode_scale: Tensor | None = None

    @property
    def grid(self) -> Grid:
        """The grid that elements lie on once divided by their step."""
        return E4M3 if self.precision is Precision.FP8 else E2M1

    def steps(self, columns: slice | None = None) -> Tensor:
        """What each element is divided by before it meets the grid.

        Args:
            columns: Columns wanted, whole blocks of 16; all by default.

        Returns:
            float32 [out, columns] for NVFP4, [out, 1] for FP8.
        """
        if self.decode_scale is not None:
            return self.decode_scale
        assert self.block_scale is not None
        assert self.encode_scale is not None
        size = nvfp4.BLOCK_SIZE
        blocks = slice(None) if columns is None else slice(columns.start // size, -(-columns.stop // size))
        steps = self.block_scale[:, blocks].float() / self.encode_scale
        return steps.repeat_interleave(size, dim=1)


def nearest_scales(weights: Sequence[Tensor], precision: Precision) -> list[WeightScales]:
    """Scales that put the largest magnitudes at the end of the grid; NVFP4 weights share a global scale.

    Args:
        weights: [out, in] each, any float dtype, finite.
        precision: FP8 or NVFP4.

    Raises:
        WeightValueError: A weight holds NaN or Inf.
        ShapeError: A width does not suit the format.
    """
    if precision is Precision.FP8:
        return [WeightScales(precision, fp8.weight_decode_scale(weight, "channel")) for weight in weights]
    encode_scale = nvfp4.exchangeable_scale(nvfp4.shared_global_encode_scale(*weights))
    return [_nvfp4_scales(weight, encode_scale) for weight in weights]


def _nvfp4_scales(weight: Tensor, encode_scale: Tensor) -> WeightScales:
    block_scale = nvfp4.block_decode_scale(weight, encode_scale)
    return WeightScales(Precision.NVFP4, block_scale=block_scale, encode_scale=encode_scale)


@torch.no_grad()
def searched_scales(
    weights: Sequence[Tensor], precision: Precision, second_moment: Tensor
) -> list[WeightScales]:
    """Scales of least weighted squared error among the neighbours of ``nearest_scales``.

    FP8: one search an output channel. NVFP4: one an element block under each of a few global scales, of which
    the best for all members is kept. What gains nothing keeps its nearest scale.

    Args:
        weights: float32 [out, in] each, finite.
        precision: FP8 or NVFP4.
        second_moment: float32 [in]: mean of x² of each input channel. All zero counts as all equal.

    Raises:
        WeightValueError: A weight holds NaN or Inf.
        ShapeError: A width does not suit the format.
    """
    importance = second_moment if bool(second_moment.any()) else torch.ones_like(second_moment)
    base = nearest_scales(weights, precision)
    if precision is Precision.FP8:
        return [_search_channels(w, s, importance) for w, s in zip(weights, base, strict=True)]
    assert base[0].encode_scale is not None
    best, best_error = base, float("inf")
    for factor in _GLOBAL_FACTORS:
        encode_scale = nvfp4.exchangeable_scale(base[0].encode_scale * factor)
        found = [_search_blocks(_nvfp4_scales(w, encode_scale), w, importance) for w in weights]
        error = sum(error for _, error in found)
        if error < best_error:
            best, best_error = [scales for scales, _ in found], error
    return best


def _search_channels(weight: Tensor, base: WeightScales, importance: Tensor) -> WeightScales:
    assert base.decode_scale is not None
    chosen = [
        _search_channels_of(part, scale, importance)
        for part, scale in zip(_pieces(weight), base.decode_scale.split(_piece_rows(weight)), strict=True)
    ]
    return WeightScales(base.precision, torch.cat(chosen))


def _search_channels_of(weight: Tensor, scale: Tensor, importance: Tensor) -> Tensor:
    best, best_error = scale, _channel_error(weight, scale, importance)
    for factor in _FP8_FACTORS:
        candidate = scale * factor
        error = _channel_error(weight, candidate, importance)
        is_better = error < best_error
        best = torch.where(is_better, candidate, best)
        best_error = torch.where(is_better, error, best_error)
    return best


def _channel_error(weight: Tensor, scale: Tensor, importance: Tensor) -> Tensor:
    """Weighted squared error of each row, float32 [out, 1]."""
    difference = round_to_grid_(weight / scale, E4M3).mul_(scale).sub_(weight)
    return (difference.square_() @ importance).unsqueeze(1)


def _search_blocks(base: WeightScales, weight: Tensor, importance: Tensor) -> tuple[WeightScales, float]:
    """The best block scales under one global scale, and the total error with them."""
    assert base.block_scale is not None
    assert base.encode_scale is not None
    chosen, total = [], 0.0
    for part, codes in zip(_pieces(weight), base.block_scale.split(_piece_rows(weight)), strict=True):
        best, error = _search_blocks_of(part, codes, base.encode_scale, importance)
        chosen.append(best)
        total += error
    return WeightScales(Precision.NVFP4, block_scale=torch.cat(chosen), encode_scale=base.encode_scale), total


def _search_blocks_of(
    weight: Tensor, block_scale: Tensor, encode_scale: Tensor, importance: Tensor
) -> tuple[Tensor, float]:
    blocks = weight.reshape(-1, nvfp4.BLOCK_SIZE)
    # One row of importances a block position; rows of the weight repeat them.
    factors = importance.view(-1, nvfp4.BLOCK_SIZE).repeat(len(weight), 1)
    codes = block_scale.view(torch.uint8).to(torch.int16).reshape(-1, 1)
    best, best_error = codes, _block_error(blocks, codes, encode_scale, factors)
    for step in _BLOCK_CODE_STEPS:
        candidate = (codes + step).clamp_(_SMALLEST_CODE, _LARGEST_CODE)
        error = _block_error(blocks, candidate, encode_scale, factors)
        is_better = error < best_error
        best = torch.where(is_better, candidate, best)
        best_error = torch.where(is_better, error, best_error)
    scales = best.to(torch.uint8).view(torch.float8_e4m3fn).view(block_scale.shape)
    return scales, float(best_error.sum(dtype=torch.float64))


def _block_error(blocks: Tensor, codes: Tensor, encode_scale: Tensor, factors: Tensor) -> Tensor:
    """Weighted squared error of each block, float32 [blocks, 1]."""
    step = codes.to(torch.uint8).view(torch.float8_e4m3fn).float() / encode_scale
    difference = round_to_grid_(blocks / step, E2M1).mul_(step).sub_(blocks)
    return difference.square_().mul_(factors).sum(dim=1, keepdim=True)


def _piece_rows(weight: Tensor) -> int:
    return max(1, _PIECE_ELEMENTS // weight.shape[1])


def _pieces(weight: Tensor) -> tuple[Tensor, ...]:
    return torch.split(weight, _piece_rows(weight))


def stored(values: Tensor, scales: WeightScales) -> QuantizedWeight:
    """Rounds values to their grid under given scales, in stored form.

    Args:
        values: [out, in], any float dtype, finite; values that already lie on the grid keep their codes.
        scales: Scales of this weight.
    """
    if scales.decode_scale is not None:
        return FP8Weight(
            codes=fp8.encode(values, scales.decode_scale), decode_scale=scales.decode_scale.clone()
        )
    assert scales.block_scale is not None
    assert scales.encode_scale is not None
    weight: NVFP4Weight = nvfp4.quantize(values, scales.encode_scale.clone(), scales.block_scale)
    return weight
