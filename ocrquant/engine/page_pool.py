"""Pages by number, with a count of who refers to each.

Knows integers; what lies in a page, and who holds it, is not its concern.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["PagePool"]


class PagePool:
    """Free pages and reference counts of the others.

    Args:
        num_pages: How many there are, numbered from 0.
    """

    def __init__(self, num_pages: int) -> None:
        self._references = [0] * num_pages
        self._free = list(range(num_pages - 1, -1, -1))

    @property
    def num_pages(self) -> int:
        """All pages."""
        return len(self._references)

    @property
    def num_free(self) -> int:
        """Pages that nobody refers to."""
        return len(self._free)

    @property
    def free_pages(self) -> tuple[int, ...]:
        """Numbers of the pages that nobody refers to; their content means nothing."""
        return tuple(self._free)

    def references(self, page: int) -> int:
        """How many refer to a page."""
        return self._references[page]

    def take(self, count: int) -> list[int]:
        """Pages with one reference each; there must be so many free."""
        assert 0 <= count <= len(self._free), "whoever takes pages has asked for num_free before"
        if count == 0:
            return []
        pages = self._free[-count:]
        del self._free[-count:]
        for page in pages:
            self._references[page] = 1
        return pages

    def share(self, pages: Iterable[int]) -> None:
        """One reference more to each page; all must be in use."""
        for page in pages:
            assert self._references[page] > 0, f"page {page} is free and cannot be shared"
            self._references[page] += 1

    def give(self, pages: Iterable[int]) -> None:
        """One reference less to each page; a page without references is free."""
        for page in pages:
            assert self._references[page] > 0, f"page {page} is free already"
            self._references[page] -= 1
            if self._references[page] == 0:
                self._free.append(page)

    def check_integrity(self, holders: Iterable[Sequence[int]]) -> None:
        """Compares the counts with all who hold pages.

        Args:
            holders: The pages of each holder; no holder names a page twice.

        Raises:
            AssertionError: A page is lost, held without being counted, or both free and in use.
        """
        expected = [0] * self.num_pages
        for pages in holders:
            assert len(set(pages)) == len(pages), f"one holder has a page twice: {list(pages)}"
            for page in pages:
                expected[page] += 1
        assert self._references == expected, "reference counts differ from the pages that are held"
        unused = [page for page, count in enumerate(expected) if count == 0]
        assert sorted(self._free) == unused, "the free pages are not those that nobody holds"
