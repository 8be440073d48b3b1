"""Products by FlashInfer, with its names and layouts.

Read in flashinfer-python 0.7.4, ``flashinfer/gemm/gemm_base.py``: weights are passed as the transposed view
of [n, w]; block scales lie in the 128x4 layout, which is that of `formats.scale_layout`, as a matrix of whole
tiles; results are bf16 and lie one row after another. Of its backends cuDNN is called, which it takes first
for NVFP4 on a B200 with CUDA 13 and which needs no compiler; CUTLASS would be compiled for minutes in the
middle of the first request. A first call looks for plans; those that follow find them, so that a step can be
captured. What it takes of scales decides where it is called: its FP8 products have one scale a side
(``bmm_fp8``, ``mm_fp8``) or one for blocks of 128 (``gemm_fp8_nt_groupwise``), and none has one for every row
and channel, as what the runtime multiplies in FP8 has: that stays with torch. Loaded where it is called;
knows no rule of when.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ocrquant.formats.precision import NVFP4_BLOCK_SIZE
from ocrquant.formats.scale_layout import TILE_COLUMNS, TILE_ROWS
from ocrquant.kernels.libraries import load

__all__ = ["bmm_fp8", "mm_fp4"]

_BACKEND = "cudnn"


def mm_fp4(
    rows: Tensor, weight: Tensor, row_tiles: Tensor, weight_tiles: Tensor, decode: Tensor, out: Tensor
) -> None:
    """``rows @ weight.T`` of E2M1 codes with their block scales, times `decode`, rounded once.

    Args:
        rows: uint8 [R, w / 2], the even column in the low nibble; w a multiple of 32.
        weight: uint8 [n, w / 2]; n a multiple of 32.
        row_tiles: uint8, E4M3 block scales of the rows in the 128x4 layout.
        weight_tiles: The same of the weight.
        decode: float32 [1].
        out: bf16 [R, n], contiguous.
    """
    columns = -(-2 * rows.shape[1] // (NVFP4_BLOCK_SIZE * TILE_COLUMNS)) * TILE_COLUMNS
    sides = [tiles.view(torch.uint8).view(-1, columns) for tiles in (row_tiles, weight_tiles)]
    assert all(len(side) % TILE_ROWS == 0 for side in sides), "whole tiles"
    load("flashinfer", "flashinfer").mm_fp4(
        rows,
        weight.t(),
        sides[0],
        sides[1].t(),
        decode,
        torch.bfloat16,
        out,
        block_size=NVFP4_BLOCK_SIZE,
        backend=_BACKEND,
    )


def bmm_fp8(rows: Tensor, weight: Tensor, row_decode: Tensor, weight_decode: Tensor, out: Tensor) -> None:
    """``rows @ weight.T`` of E4M3 codes, times both scales, rounded once.

    Args:
        rows: float8_e4m3fn [R, w]; w a multiple of 16.
        weight: float8_e4m3fn [n, w]; n a multiple of 16.
        row_decode: float32 [1].
        weight_decode: float32 [1].
        out: bf16 [R, n], contiguous.
    """
    sides = rows.unsqueeze(0), weight.t().unsqueeze(0)
    load("flashinfer", "flashinfer").bmm_fp8(
        *sides, row_decode, weight_decode, torch.bfloat16, out.unsqueeze(0), backend=_BACKEND
    )
