"""The 128x4 layout in which Blackwell's matrix units read NVFP4 block scales.

Scales [M, K / 16] are padded with zeros to whole tiles of 128 rows and 4 columns. A tile takes 512 bytes, in
which rows 32 apart lie side by side: ``offset(m, k) = ((m // 128) * ceil(K / 64) + k // 4) * 512
+ (m % 32) * 16 + (m // 32 % 4) * 4 + k % 4``, k counting scales. Source: CUTLASS,
``sm100_blockscaled_layout.hpp``, SfAtom ((32,4),(16,4)):((16,4),(0,1)). Padding is read by the hardware, so
it is always written.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["TILE_COLUMNS", "TILE_ROWS", "swizzle", "swizzled_size", "unswizzle"]

TILE_ROWS = 128
TILE_COLUMNS = 4
_LANES = 32
_TILE_SIZE = TILE_ROWS * TILE_COLUMNS


def _tiles(rows: int, columns: int) -> tuple[int, int]:
    return -(-rows // TILE_ROWS), -(-columns // TILE_COLUMNS)


def swizzled_size(rows: int, columns: int) -> int:
    """Bytes of the layout for scales [rows, columns], padding included."""
    down, across = _tiles(rows, columns)
    return down * across * _TILE_SIZE


def swizzle(scales: Tensor) -> Tensor:
    """Scales [M, K / 16] of one byte each as the flat layout, padded with zeros.

    Returns:
        [`swizzled_size`] in the dtype of `scales`.
    """
    rows, columns = scales.shape
    down, across = _tiles(rows, columns)
    raw = scales.view(torch.uint8)
    padded = F.pad(raw, (0, across * TILE_COLUMNS - columns, 0, down * TILE_ROWS - rows))
    split = padded.view(down, TILE_ROWS // _LANES, _LANES, across, TILE_COLUMNS)
    return split.permute(0, 3, 2, 1, 4).reshape(-1).view(scales.dtype)


def unswizzle(flat: Tensor, rows: int, columns: int) -> Tensor:
    """Inverse of `swizzle`: the scales [rows, columns] without their padding."""
    down, across = _tiles(rows, columns)
    split = flat.view(torch.uint8).view(down, across, _LANES, TILE_ROWS // _LANES, TILE_COLUMNS)
    padded = split.permute(0, 3, 2, 1, 4).reshape(down * TILE_ROWS, across * TILE_COLUMNS)
    return padded[:rows, :columns].contiguous().view(flat.dtype)
