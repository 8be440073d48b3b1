"""What counts places in the arrays of a step whose requests go on: it grows by the tokens that were taken.

Nearly every step of a batch at work has the requests and the numbers of rows of the one before. Then nothing
is written anew but tokens; lengths and positions grow, cells are looked up, and pages are copied when some
were entered. Knows counts and where they lie; knows no request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ocrquant.engine.page_table import PageTable

__all__ = ["CacheRows", "MovingRows"]

Int32 = npt.NDArray[np.int32]


@dataclass(slots=True)
class CacheRows:
    """What a step says of one paged cache.

    Attributes:
        table: Pages and cells of all slots.
        slot_mapping: int32 [R], the cell of each row, written.
        page_table: int32 [n, pages], the pages of each request, written.
        num_changes: Of the table, when `page_table` was written; -1 before.
    """

    table: PageTable
    slot_mapping: Int32
    page_table: Int32
    num_changes: int = -1


class MovingRows:
    """Rows of n requests, R in all, that move on together.

    Args:
        slots: State slot of each request.
        places: Place in the sequence of each request's first row, as the counters have it now.
        row_counts: Rows of each request.
        by_request: int32 [n], what grows with a request.
        by_row: int32 [..., R], what grows with each row.
        caches: The paged caches that rows go to.
    """

    def __init__(
        self,
        slots: Sequence[int],
        places: Sequence[int],
        row_counts: Sequence[int],
        by_request: Int32,
        by_row: Sequence[Int32],
        caches: Sequence[CacheRows],
    ) -> None:
        self._slots, self._places = np.array(slots, np.intp), np.array(places, np.int32)
        self._row_counts = np.array(row_counts, np.intp)
        inside = np.concatenate([np.arange(count, dtype=np.intp) for count in row_counts])
        first = self._slots * caches[0].table.cells.shape[1] + self._places
        # Of each row's token among the cells of all slots.
        self._tokens = first.repeat(self._row_counts) + inside
        self._by_request, self._by_row, self._caches = by_request, by_row, caches
        self._cells = [cache.table.cells.reshape(-1) for cache in caches]

    def move_to(self, places: Sequence[int]) -> None:
        """Lets the rows begin at other places.

        Args:
            places: Place in the sequence of each request's first row.
        """
        now = np.array(places, np.int32)
        moved = now - self._places
        self._places = now
        by_row = moved.repeat(self._row_counts)
        self._by_request += moved
        self._tokens += by_row
        for counter in self._by_row:
            counter += by_row
        for cells, cache in zip(self._cells, self._caches, strict=True):
            # Out of bounds cannot be: "clip" spares a copy of what is written.
            cells.take(self._tokens, out=cache.slot_mapping, mode="clip")
            if cache.num_changes != cache.table.num_changes:
                cache.table.pages.take(self._slots, axis=0, out=cache.page_table, mode="clip")
                cache.num_changes = cache.table.num_changes
