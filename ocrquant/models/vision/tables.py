"""Position tables of a batch of images on the device: made once a grid size, joined for the batch.

Knows the learned table of a tower and its rotary frequencies. A batch with new grids works all of them out
together; a batch without uploads only where its frames start. Nothing is read back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ocrquant.models.grids import Grid
from ocrquant.models.vision.cache import CacheCounts, LeastFrequentCache
from ocrquant.models.vision.positions import (
    bilinear_taps,
    block_order,
    pack_grids,
    rotary_rows,
)

__all__ = ["BatchTables", "GridTables"]

MAX_ENTRIES = 256
MAX_BYTES = 128 << 20
"""A page of two million pixels takes 22 MB in a tower 1152 wide with patches of 16 pixels, a line 0.2 MB."""

_Size = tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class _FrameTables:
    """Of one frame; its learned positions [patches, width], cosines and sines [patches, head_dim / 2]."""

    learned: Tensor
    cos: Tensor
    sin: Tensor

    @property
    def num_bytes(self) -> int:
        return sum(t.nbytes for t in (self.learned, self.cos, self.sin))


@dataclass(frozen=True, slots=True, eq=False)
class BatchTables:
    """Of all images of a batch; R patches. Read only: one image's are the cached ones themselves.

    Attributes:
        learned: [R, width], resampled learned positions.
        cos: float32 [R, head_dim / 2].
        sin: float32 [R, head_dim / 2].
        starts: int32 [frames + 1], first patch of each frame.
        order: int32 [R], which patch comes next when those of one token are to lie together; None where they
            lie so already.
        num_tokens: Of all images.
    """

    learned: Tensor
    cos: Tensor
    sin: Tensor
    starts: Tensor
    order: Tensor | None
    num_tokens: int


class GridTables:
    """Makes and keeps the tables of a tower.

    Attributes:
        learned: The learned positions as stored.

    Args:
        learned: [side ** 2, width], the learned positions.
        frequencies: float32 [head_dim / 4], radians a patch.
        merge_size: Patches along each side of a token.
        in_blocks: Whether patches of one token lie together in the input.
        max_entries: Most grid sizes kept.
        max_bytes: Most bytes kept.
    """

    def __init__(
        self,
        learned: Tensor,
        frequencies: Tensor,
        merge_size: int,
        *,
        in_blocks: bool,
        max_entries: int = MAX_ENTRIES,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self.learned = learned
        self._side = round(learned.shape[0] ** 0.5)
        self._frequencies = frequencies.cpu().numpy()
        self._merge_size = merge_size
        self._in_blocks = in_blocks
        self._order_size = merge_size if in_blocks else 1
        self._cache: LeastFrequentCache[_Size, _FrameTables] = LeastFrequentCache(
            lambda tables: tables.num_bytes, max_entries, max_bytes
        )

    @property
    def counts(self) -> CacheCounts:
        """What the cache has done so far."""
        return self._cache.counts

    def forget(self) -> None:
        """Drops the tables of all sizes."""
        self._cache.clear()

    def batch(self, grids: Sequence[Grid]) -> BatchTables:
        """Tables of a batch.

        Args:
            grids: Of each image, frames, rows and columns of patches.

        Raises:
            ShapeError: A grid that blocks of one token do not tile.
        """
        packed = pack_grids(grids, self._merge_size)
        frames = self._cache.get_many(packed.sizes, self._make)
        order = None
        if not self._in_blocks:
            places = [
                block_order(rows, columns, self._merge_size) + start
                for (rows, columns), start in zip(packed.sizes, packed.starts[:-1], strict=True)
            ]
            order = self._upload(np.concatenate(places))
        return BatchTables(
            learned=_join([frame.learned for frame in frames]),
            cos=_join([frame.cos for frame in frames]),
            sin=_join([frame.sin for frame in frames]),
            starts=self._upload(packed.starts),
            order=order,
            num_tokens=packed.num_tokens,
        )

    def _upload(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.learned.device)

    def _make(self, sizes: list[_Size]) -> list[_FrameTables]:
        """Tables of several sizes at once, so that a size costs the device three copies and no more."""
        taps, weights = zip(
            *(bilinear_taps(*size, self._side, self._order_size) for size in sizes), strict=True
        )
        rotary = [rotary_rows(*size, self._order_size, self._frequencies) for size in sizes]
        index = self._upload(np.concatenate(taps)).long()
        weight = self._upload(np.concatenate(weights))
        cos, sin = (self._upload(np.concatenate([pair[i] for pair in rotary])) for i in (0, 1))
        # As transformers: products and their sum in single precision (or double), one rounding at the end.
        learned = (self.learned[index] * weight[:, :, None]).sum(1).to(self.learned.dtype)
        lengths = [rows * columns for rows, columns in sizes]
        parts = [tensor.split(lengths) for tensor in (learned, cos, sin)]
        if len(sizes) > 1:  # a view would keep the tables of every size of this batch alive
            parts = [tuple(part.clone() for part in split) for split in parts]
        return [_FrameTables(*tables) for tables in zip(*parts, strict=True)]


def _join(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
