"""The last step of every producer as a Triton device function: a finished row into the forms of its operand.

The rules are those of ``kernels.emit``. A kernel gets an operand as the tuple that `forms` makes; what is
not wanted is None there and costs nothing. Knows rows in registers; knows no op.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

from ocrquant.formats import fp8, precision, scale_layout
from ocrquant.kernels.operand import Operand
from ocrquant.kernels.triton_common.launch import next_power
from ocrquant.kernels.triton_common.numerics import E2M1_MAX, e2m1_pairs, e4m3_codes, magnitude

__all__ = ["Tiling", "emit", "emit_padding", "forms", "tiling"]

E4M3_MAX = tl.constexpr(precision.E4M3_MAX)
TOKEN_SCALE_FLOOR = tl.constexpr(fp8.TOKEN_SCALE_FLOOR)
BLOCK = tl.constexpr(precision.NVFP4_BLOCK_SIZE)
TILE_ROWS = tl.constexpr(scale_layout.TILE_ROWS)
TILE_COLUMNS = tl.constexpr(scale_layout.TILE_COLUMNS)
TILE_SIZE = tl.constexpr(scale_layout.TILE_ROWS * scale_layout.TILE_COLUMNS)

PADDING_ROWS = tl.constexpr(32)
_PART = 2048
"""Columns of a program where no number of the whole row is needed; 16 elements a thread of four warps."""
_ELEMENTS_A_THREAD = 16
_MOST_WARPS = 16


@dataclass(frozen=True, slots=True)
class Tiling:
    """How rows are shared out to programs.

    Attributes:
        grid: Rows, then pieces of the scales' padding, and parts of a row.
        columns: Columns of a part, a power of two.
        num_warps: Warps of a program.
    """

    grid: tuple[int, int]
    columns: int
    num_warps: int


def tiling(out: Operand, rows: int, width: int, *, least: int = 1, whole_rows: bool = False) -> Tiling:
    """Shares out the rows of an operand.

    Args:
        out: The operand: swizzled scales have rows of padding, a scale by token needs the whole row.
        rows: R.
        width: w.
        least: Fewest columns of a part, a power of two.
        whole_rows: Whether the op itself needs whole rows.
    """
    is_tiled = out.nvfp4_swizzled is not None
    multiple = TILE_COLUMNS.value * BLOCK.value if is_tiled else 1
    padded = -(-width // multiple) * multiple
    columns = next_power(max(padded, least, BLOCK.value))
    if not whole_rows and out.fp8_scale is None:
        columns = min(columns, max(_PART, least))
    # Rows of padding go by many to a program: they are but zeros.
    down = rows + (-(-(-rows % TILE_ROWS.value) // PADDING_ROWS.value) if is_tiled else 0)
    warps = columns // (32 * _ELEMENTS_A_THREAD)
    return Tiling((down, -(-padded // columns)), columns, max(1, min(warps, _MOST_WARPS)))


def forms(out: Operand) -> tuple[Any, ...]:
    """An operand as kernels take it."""
    scales = (out.fp8, out.fp8_scale, out.fp8_static)
    return (out.plain, *scales, out.nvfp4, out.nvfp4_scale, out.nvfp4_swizzled, out.encode_scale)


@triton.jit
def _emit_fp8(y, row, columns, width, codes, token_scale, static_scale):
    if static_scale is not None:
        scale = tl.load(static_scale)
    else:
        largest = tl.max(magnitude(y), axis=0).to(tl.float32, bitcast=True)
        scale = tl.div_rn(largest, E4M3_MAX)
        # Not tl.maximum: a NaN stays.
        scale = tl.where(scale < TOKEN_SCALE_FLOOR, TOKEN_SCALE_FLOOR, scale)
        tl.store(token_scale + row, scale)
    tl.store(codes + row * width + columns, e4m3_codes(tl.div_rn(y, scale)), mask=columns < width)


@triton.jit
def _swizzled(row, block, width):
    """Where the scale of a block lies in the 128x4 layout."""
    across = tl.cdiv(width, BLOCK * TILE_COLUMNS)
    tile = (row // TILE_ROWS) * across + block // TILE_COLUMNS
    inside = (row % 32) * 16 + (row // 32 % 4) * TILE_COLUMNS + block % TILE_COLUMNS
    return tile * TILE_SIZE + inside


@triton.jit
def _padded_blocks(width):
    return tl.cdiv(width, BLOCK * TILE_COLUMNS) * TILE_COLUMNS


@triton.jit
def _store_scales(codes, row, first, width, rowwise, swizzled, COUNT: tl.constexpr):
    block = first // BLOCK + tl.arange(0, COUNT)
    if swizzled is not None:
        blocks = _padded_blocks(width)
        tl.store(swizzled + _swizzled(row, block, width), codes, mask=block < blocks)
    else:
        blocks = width // BLOCK
        tl.store(rowwise + row * blocks + block, codes, mask=block < blocks)


@triton.jit
def _emit_nvfp4(
    y, row, first, width, codes, rowwise, swizzled, encode, COLUMNS: tl.constexpr, CONVERTS: tl.constexpr
):
    COUNT: tl.constexpr = COLUMNS // BLOCK
    encode_scale = tl.load(encode)
    largest = tl.max(magnitude(tl.reshape(y, [COUNT, BLOCK])), axis=1).to(tl.float32, bitcast=True)
    scale_codes = e4m3_codes(tl.div_rn(largest, E2M1_MAX) * encode_scale)
    _store_scales(scale_codes, row, first, width, rowwise, swizzled, COUNT)
    scale = tl.div_rn(scale_codes.to(tl.float8e4nv, bitcast=True).to(tl.float32), encode_scale)
    divisor = tl.where(scale == 0.0, float("inf"), scale)
    low, high = tl.split(tl.reshape(y, [COUNT, BLOCK // 2, 2]))
    divisor = tl.broadcast_to(divisor[:, None], [COUNT, BLOCK // 2])
    pairs = e2m1_pairs(tl.div_rn(low, divisor), tl.div_rn(high, divisor), CONVERTS)
    place = first // 2 + tl.arange(0, COLUMNS // 2)
    pairs = tl.reshape(pairs, [COLUMNS // 2])
    tl.store(codes + row * (width // 2) + place, pairs, mask=place < width // 2)


@triton.jit
def emit(y, row, first, width, out, COLUMNS: tl.constexpr, CONVERTS: tl.constexpr):
    """Writes a part of a finished row.

    Args:
        y: float32 [COLUMNS], rounded to bf16; zero beyond the width.
        row: int64.
        first: Column of its first element.
        width: w.
        out: What `forms` made of the operand.
        COLUMNS: A power of two, at least 16; the whole row where FP8 has a scale by token.
        CONVERTS: See `e2m1_pairs`.
    """
    columns = first + tl.arange(0, COLUMNS)
    if out[0] is not None:
        tl.store(out[0] + row * width + columns, y.to(tl.bfloat16), mask=columns < width)
    if out[1] is not None:
        _emit_fp8(y, row, columns, width, out[1], out[2], out[3])
    if out[4] is not None:
        _emit_nvfp4(y, row, first, width, out[4], out[5], out[6], out[7], COLUMNS, CONVERTS)


@triton.jit
def emit_padding(row, rows, first, width, out, COLUMNS: tl.constexpr):
    """Writes zeros for rows that only the tiles of the swizzled scales have.

    Args:
        row: Of the program, int64: from `rows` on it counts pieces of 32 rows.
        rows: R.
        first: Column of the part.
        width: w.
        out: What `forms` made of the operand.
        COLUMNS: Of the part.
    """
    COUNT: tl.constexpr = COLUMNS // BLOCK
    if out[6] is not None:
        padding = rows + (row - rows) * PADDING_ROWS + tl.arange(0, PADDING_ROWS)[:, None]
        block = first // BLOCK + tl.arange(0, COUNT)[None, :]
        is_there = (padding < tl.cdiv(rows, TILE_ROWS) * TILE_ROWS) & (block < _padded_blocks(width))
        zeros = tl.zeros([PADDING_ROWS, COUNT], tl.uint8)
        tl.store(out[6] + _swizzled(padding, block, width), zeros, mask=is_there)
