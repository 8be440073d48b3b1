"""Where the tokens of each slot lie in one paged cache: its pages in order, and the cell of every token.

Cells follow from pages and are written with them, so that no step divides places by the size of a page. Knows
integers; who holds a page is `page_pool`'s concern.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["PageTable"]


class PageTable:
    """Pages and cells of all slots; stale beyond the pages that a slot holds.

    Args:
        num_slots: Slots, the one that is nobody's included.
        num_pages: Pages of the longest sequence.
        page_size: Tokens of a page.

    Attributes:
        pages: int32 [slots, pages], by slot in order of position.
        cells: int32 [slots, tokens], ``page * page_size + offset`` of each token.
        num_changes: How often pages were entered; the same number, the same table.
    """

    __slots__ = ("_by_page", "_offsets", "cells", "num_changes", "pages")

    def __init__(self, num_slots: int, num_pages: int, page_size: int) -> None:
        self.pages: npt.NDArray[np.int32] = np.zeros((num_slots, num_pages), np.int32)
        self._offsets = np.arange(page_size, dtype=np.int32)
        self._by_page = np.tile(self._offsets, (num_slots, num_pages, 1))
        self.cells: npt.NDArray[np.int32] = self._by_page.reshape(num_slots, -1)
        self.num_changes = 0

    def enter(self, slot: int, begin: int, pages: Sequence[int]) -> None:
        """Enters pages of a slot.

        Args:
            slot: Whose they are.
            begin: Pages before them.
            pages: Their numbers.
        """
        where = slice(begin, begin + len(pages))
        self.pages[slot, where] = pages
        starts = self.pages[slot, where, None] * len(self._offsets)
        np.add(starts, self._offsets, out=self._by_page[slot, where])
        self.num_changes += 1

    def check_integrity(self, slot: int, num_pages: int) -> None:
        """Compares the cells of a slot's first pages with these pages.

        Raises:
            AssertionError: A token's cell is not in its page.
        """
        expected = self.pages[slot, :num_pages, None] * len(self._offsets) + self._offsets
        assert (self._by_page[slot, :num_pages] == expected).all(), f"slot {slot} has cells beside its pages"
