"""Where the patches of packed images lie: all index arithmetic of a vision tower, on the host, in NumPy.

Knows grids and the two orders of patches (raster, and blocks of the patches of one token). Knows no weights
and no device: nothing here is read back from one. Matches ``transformers.vision_utils``, single precision
where that has it, so that the tables of learned positions come out bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ocrquant.errors import ShapeError
from ocrquant.models.grids import Grid

__all__ = [
    "PackedGrids",
    "bilinear_taps",
    "block_order",
    "pack_grids",
    "patch_coordinates",
    "rotary_rows",
]

Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class PackedGrids:
    """Images of a batch in one sequence.

    Attributes:
        sizes: Rows and columns of each frame of each image, in order.
        starts: int32 [frames + 1], first patch of each frame; the last entry is the number of patches.
            Patches of one frame attend to each other and to no others.
        num_patches: Of all images.
        num_tokens: Of all images.
    """

    sizes: tuple[tuple[int, int], ...]
    starts: Int32
    num_patches: int
    num_tokens: int


def pack_grids(grids: Sequence[Grid], merge_size: int) -> PackedGrids:
    """Lays images one after another.

    Args:
        grids: Of each image.
        merge_size: Patches along each side of a token.

    Raises:
        ShapeError: No image, an empty grid, or one that blocks of ``merge_size`` do not tile.
    """
    if not grids:
        raise ShapeError("images", expected="at least one", given="none", fix="leave the call out")
    for grid in grids:
        if min(grid) < 1 or grid[1] % merge_size or grid[2] % merge_size:
            raise ShapeError(
                "grid of an image",
                expected=f"frames >= 1, rows and columns in multiples of {merge_size}",
                given=grid,
                fix="take grid and patches from the model's own processor",
            )
    sizes = tuple((rows, columns) for frames, rows, columns in grids for _ in range(frames))
    lengths = [rows * columns for rows, columns in sizes]
    starts = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=starts[1:])
    total = int(starts[-1])
    return PackedGrids(sizes, starts, total, total // merge_size**2)


def patch_coordinates(rows: int, columns: int, merge_size: int) -> tuple[Int32, Int32]:
    """Row and column of every patch of a frame, in the order in which patches lie.

    Args:
        rows: Of patches.
        columns: Of patches.
        merge_size: 1 for raster order; else patches of one token lie together, raster order inside and among
            tokens.

    Returns:
        int32 [rows * columns] twice.
    """
    grid = np.indices((rows, columns), dtype=np.int32)
    blocks = grid.reshape(2, rows // merge_size, merge_size, columns // merge_size, merge_size)
    row, column = blocks.transpose(0, 1, 3, 2, 4).reshape(2, rows * columns)
    return row, column


def block_order(rows: int, columns: int, merge_size: int) -> Int32:
    """int32 [rows * columns]: where in raster order each patch lies that block order asks for next."""
    row, column = patch_coordinates(rows, columns, merge_size)
    return row * np.int32(columns) + column


def _axis_taps(
    index: Int32, size: int, side: int, align_corners: bool
) -> tuple[tuple[Int32, Int32], tuple[Float32, Float32]]:
    """Two taps of a learned axis of length ``side`` for each place on one of length ``size``, and weights."""
    place = index.astype(np.float32)
    if align_corners:
        # Both ends of the image take both ends of the table; an axis of length 1 takes the first entry.
        source = place * np.float32(side - 1) / np.float32(max(size - 1, 1))
    else:
        source = (place + np.float32(0.5)) * np.float32(side) / np.float32(size) - np.float32(0.5)
    floor = np.floor(source)
    first = floor.astype(np.int32)
    distance = source - floor
    lower = np.clip(first, 0, side - 1)
    upper = np.clip(first + 1, 0, side - 1)
    weights = (1 - distance, 1 - np.abs(distance - np.float32(1)))
    return (lower, upper), (np.maximum(weights[0], 0), np.maximum(weights[1], 0))


def bilinear_taps(
    rows: int, columns: int, side: int, merge_size: int, *, align_corners: bool = True
) -> tuple[Int32, Float32]:
    """How the learned positions of a frame come from a square table, bilinearly.

    Both families resample with ``align_corners=True`` in ``transformers`` 5.17, which their weights are
    checked against; a serving engine is known to use False for PaddleOCR-VL, and the two differ at every grid
    other than the table's own.

    Args:
        rows: Of patches.
        columns: Of patches.
        side: Rows and columns of the table.
        merge_size: As for `patch_coordinates`.
        align_corners: As for ``torch.nn.functional.interpolate``.

    Returns:
        int32 [rows * columns, 4], rows of the flattened table; float32 of the same shape, their weights.
    """
    row, column = patch_coordinates(rows, columns, merge_size)
    row_taps, row_weights = _axis_taps(row, rows, side, align_corners)
    column_taps, column_weights = _axis_taps(column, columns, side, align_corners)
    taps = [r * np.int32(side) + c for r in row_taps for c in column_taps]
    weights = [r * c for r in row_weights for c in column_weights]
    return np.stack(taps, axis=1), np.stack(weights, axis=1)


def rotary_rows(rows: int, columns: int, merge_size: int, frequencies: Float32) -> tuple[Float32, Float32]:
    """Cosines and sines of a frame's patches: frequencies over its row, then the same over its column.

    The angle is a product in single precision, as ``transformers`` has it; its cosine is worked out in double
    and rounded once, so that it depends on the position alone.

    Args:
        rows: Of patches.
        columns: Of patches.
        merge_size: As for `patch_coordinates`.
        frequencies: float32 [head_dim / 4], radians a patch.

    Returns:
        float32 [rows * columns, head_dim / 2] twice.
    """
    sides = np.arange(max(rows, columns), dtype=np.float32)
    angles = (sides[:, None] * frequencies).astype(np.float64)
    row, column = patch_coordinates(rows, columns, merge_size)
    cos, sin = (np.concatenate([axis[row], axis[column]], axis=1) for axis in _cos_sin(angles))
    return cos, sin


def _cos_sin(angles: npt.NDArray[np.float64]) -> tuple[Float32, Float32]:
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
