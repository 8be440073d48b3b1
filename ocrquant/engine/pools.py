"""Everything that a running request holds, taken and returned in one transaction.

Three pools that know nothing of one another: pages of the target's keys and values, state slots, pages of a
drafter's keys and values. No common page size and no groups of layers: a page number means the same place in
every layer of its pool. Knows numbers, no tensors.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ocrquant.engine.config import EngineConfig
from ocrquant.engine.page_pool import PagePool
from ocrquant.engine.page_table import PageTable
from ocrquant.engine.slot_pool import SlotPool

__all__ = ["Copies", "Holding", "PagedCache", "Pools", "Prefix"]


@dataclass(slots=True)
class Holding:
    """What one running request holds.

    Attributes:
        slot: Its state slot, and its row in the page tables.
        num_pages: Pages of each paged cache; the same number, since both hold the same tokens.
    """

    slot: int
    num_pages: int


@dataclass(frozen=True, slots=True)
class Prefix:
    """Pages of a kept prefix, to begin a request with.

    Attributes:
        num_tokens: Tokens in them; the last page may be filled in part.
        pages: For each paged cache, the pages in order.
    """

    num_tokens: int
    pages: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Copies:
    """Pages to copy before the step: target page `source` into `target`, in every layer of the cache.

    Attributes:
        kv: (source, target) in the target's cache.
        drafter: The same in the drafter's; None without one.
    """

    kv: tuple[int, int]
    drafter: tuple[int, int] | None


class PagedCache:
    """One paged cache: its pool and the page table of all slots.

    Attributes:
        pool: Who refers to which page.
        table: The pages of each slot.
    """

    __slots__ = ("pool", "table")

    def __init__(self, num_pages: int, config: EngineConfig) -> None:
        self.pool = PagePool(num_pages)
        self.table = PageTable(config.state_rows, config.pages_per_request, config.page_size)

    def held(self, holding: Holding) -> list[int]:
        """The pages of a holding."""
        pages: list[int] = self.table.pages[holding.slot, : holding.num_pages].tolist()
        return pages


class Pools:
    """Pages and slots of all running requests.

    Attributes:
        kv: Keys and values of the target.
        drafter: Keys and values of the drafter; None without one.
        slots: State slots.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.kv = PagedCache(config.num_pages, config)
        self.drafter = PagedCache(config.drafter_pages, config) if config.drafter_pages else None
        self.slots = SlotPool(config.usable_slots)
        self.caches = (self.kv,) if self.drafter is None else (self.kv, self.drafter)
        self._holdings: dict[int, Holding] = {}

    @property
    def num_free_pages(self) -> int:
        """Pages that every paged cache could still give."""
        return min(cache.pool.num_free for cache in self.caches)

    @property
    def num_pages(self) -> int:
        """Most pages that one request could ever have."""
        return min(cache.pool.num_pages for cache in self.caches)

    def take(self, num_tokens: int, prefix: Prefix | None = None) -> Holding | None:
        """A slot and room for so many tokens: all of it, or nothing and None.

        Args:
            num_tokens: Tokens that will be written.
            prefix: Pages to begin with. Full ones are shared; the place of one filled in part is taken by a
                new page, into which the caller copies it (`copies_of`).
        """
        kept = 0 if prefix is None else prefix.num_tokens // self.config.page_size
        wanted = self.config.pages_for(num_tokens)
        assert kept <= wanted, "a prefix is shorter than the sequence that begins with it"
        if self.slots.num_free == 0 or self.num_free_pages < wanted - kept:
            return None
        holding = Holding(self.slots.take(), wanted)
        for number, cache in enumerate(self.caches):
            shared = [] if prefix is None else list(prefix.pages[number][:kept])
            cache.pool.share(shared)
            cache.table.enter(holding.slot, 0, shared + cache.pool.take(wanted - kept))
        self._holdings[holding.slot] = holding
        return holding

    def copies_of(self, holding: Holding, prefix: Prefix) -> Copies | None:
        """The page to copy where a prefix ends within a page; None where it ends with one."""
        full, rest = divmod(prefix.num_tokens, self.config.page_size)
        if rest == 0:
            return None
        pairs = [
            (pages[full], int(cache.table.pages[holding.slot, full]))
            for cache, pages in zip(self.caches, prefix.pages, strict=True)
        ]
        return Copies(pairs[0], pairs[1] if len(pairs) > 1 else None)

    def grow(self, holding: Holding, num_tokens: int) -> bool:
        """Room for so many tokens in all; false, and nothing changed, if a cache lacks the pages."""
        more = self.config.pages_for(num_tokens) - holding.num_pages
        if more <= 0:
            return True
        if self.num_free_pages < more:
            return False
        for cache in self.caches:
            cache.table.enter(holding.slot, holding.num_pages, cache.pool.take(more))
        holding.num_pages += more
        return True

    def give(self, holding: Holding) -> None:
        """Returns everything."""
        for cache in self.caches:
            cache.pool.give(cache.held(holding))
        self.slots.give(holding.slot)
        del self._holdings[holding.slot]

    def share_prefix(self, holding: Holding, num_tokens: int) -> Prefix:
        """The pages of a holding's first tokens, with a reference more to each."""
        count = self.config.pages_for(num_tokens)
        pages = tuple(tuple(cache.held(holding)[:count]) for cache in self.caches)
        for cache, shared in zip(self.caches, pages, strict=True):
            cache.pool.share(shared)
        return Prefix(num_tokens, pages)

    def give_prefix(self, prefix: Prefix) -> None:
        """Returns the references of `share_prefix`."""
        for cache, pages in zip(self.caches, prefix.pages, strict=True):
            cache.pool.give(pages)

    def check_integrity(self, holdings: Iterable[Holding], prefixes: Iterable[Prefix] = ()) -> None:
        """Compares all three pools with who holds what.

        Args:
            holdings: Of all running requests.
            prefixes: All that are kept.

        Raises:
            AssertionError: Something is lost, held twice, or both free and held.
        """
        held, kept = list(holdings), list(prefixes)
        assert {id(h) for h in held} == {id(h) for h in self._holdings.values()}, "a holding is nobody's"
        self.slots.check_integrity(h.slot for h in held)
        for number, cache in enumerate(self.caches):
            cache.pool.check_integrity([*map(cache.held, held), *(p.pages[number] for p in kept)])
            for holding in held:
                cache.table.check_integrity(holding.slot, holding.num_pages)
