"""Beginnings of prompts that were computed before: their pages, and the state at their end.

A recurrent state has no past to cut from, so a prefix can be used only where a state was kept. Two places are
worth it: the end of the text before the first image, which all pages of a document share, and the end of a
whole prompt, for a page that comes again. Named by tokens, positions and image digests. Knows pages by number
and states by their size; the least recently used goes first.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ocrquant.engine.config import EngineConfig
from ocrquant.engine.plan import Snapshot
from ocrquant.engine.pools import PagedCache, Pools, Prefix
from ocrquant.engine.prompt import Prompt
from ocrquant.engine.request import PrefixKey, Request

__all__ = ["KeptPrefix", "PrefixCache", "prefix_keys"]


@dataclass(frozen=True, slots=True, eq=False)
class KeptPrefix:
    """An entry.

    Attributes:
        prefix: Its pages.
        snapshot: State after its last token; None for a model without recurrent layers.
        nbytes: Memory of both. Pages that two entries share count for each.
    """

    prefix: Prefix
    snapshot: Snapshot | None
    nbytes: int


def prefix_keys(prompt: Prompt, config: EngineConfig) -> tuple[PrefixKey, ...]:
    """The beginnings of a prompt that are worth keeping, the longest first.

    A whole prompt is kept without its last token: that one is computed again for the logits of the answer's
    first token, which depend on nothing else that would have to be kept.
    """
    if config.prefix_cache_bytes == 0:
        return ()
    lengths = {prompt.images[0].start} if prompt.images else set()
    if config.keep_prompts:
        lengths.add(len(prompt) - 1)
    return tuple(PrefixKey(n, prompt.prefix_digest(n)) for n in sorted(lengths - {0}, reverse=True))


class PrefixCache:
    """Kept prefixes, bounded in bytes.

    Args:
        config: The engine's.
        pools: Where the pages are.
        page_bytes: Memory of one page of all paged caches.

    Attributes:
        num_hits: Requests that entered with a kept prefix.
        num_evictions: Entries that went.
        nbytes: Memory of all entries.
    """

    def __init__(self, config: EngineConfig, pools: Pools, page_bytes: int) -> None:
        self.config = config
        self.num_hits = 0
        self.num_evictions = 0
        self.nbytes = 0
        self._pools = pools
        self._page_bytes = page_bytes
        self._entries: OrderedDict[bytes, KeptPrefix] = OrderedDict()
        self._references = tuple(Counter[int]() for _ in pools.caches)
        self._state_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def prefixes(self) -> Iterable[Prefix]:
        """The pages of all entries."""
        return [entry.prefix for entry in self._entries.values()]

    def longest(self, request: Request) -> KeptPrefix | None:
        """The longest kept beginning of a request."""
        for key in request.prefix_keys:
            if key.digest in self._entries:
                self._entries.move_to_end(key.digest)
                return self._entries[key.digest]
        return None

    def cut(self, request: Request, start: int, end: int) -> int:
        """Where a chunk that begins at `start` ends: at `end`, or before it where a state should be kept."""
        if self.config.recurrent:
            for key in reversed(request.prefix_keys):
                if start < key.num_tokens < end and self._wanted(key):
                    return key.num_tokens
        return end

    def keep(self, request: Request, start: int, end: int, snapshot: Callable[[int], Snapshot]) -> None:
        """Keeps what is worth it after tokens [start, end) of a request were computed.

        Args:
            request: Holds the pages.
            start: First token of the step.
            end: Token after the last one; the state in the request's slot is that of this place.
            snapshot: Copies the state of a slot.
        """
        for key in request.prefix_keys:
            reached = key.num_tokens == end if self.config.recurrent else start < key.num_tokens <= end
            if not reached or not self._wanted(key):
                continue
            assert request.holding is not None, "only a running request is computed"
            state = snapshot(request.slot) if self.config.recurrent else None
            self._state_bytes = 0 if state is None else state.nbytes
            nbytes = self._size(key)
            if nbytes > self.config.prefix_cache_bytes:
                continue
            while self.nbytes + nbytes > self.config.prefix_cache_bytes:
                self._drop(next(iter(self._entries)))
            prefix = self._pools.share_prefix(request.holding, key.num_tokens)
            self._entries[key.digest] = KeptPrefix(prefix, state, nbytes)
            self.nbytes += nbytes
            for counter, pages in zip(self._references, prefix.pages, strict=True):
                counter.update(pages)

    def make_room(self, num_pages: int, spare: KeptPrefix | None = None) -> bool:
        """Drops entries until so many pages are free in every paged cache.

        Args:
            num_pages: Pages wanted.
            spare: An entry that must stay.

        Returns:
            False if they cannot be had this way; nothing was dropped then.
        """
        if self._pools.num_free_pages >= num_pages:
            return True
        if self._reachable_pages(spare) < num_pages:
            return False
        for digest in list(self._entries):
            if self._entries[digest] is not spare and self._lonely_pages(self._entries[digest]):
                self._drop(digest)
                if self._pools.num_free_pages >= num_pages:
                    return True
        raise AssertionError("pages that only the prefix cache holds were not freed with its entries")

    def _size(self, key: PrefixKey) -> int:
        return self.config.pages_for(key.num_tokens) * self._page_bytes + self._state_bytes

    def _wanted(self, key: PrefixKey) -> bool:
        return key.digest not in self._entries and self._size(key) <= self.config.prefix_cache_bytes

    def _lonely_pages(self, entry: KeptPrefix) -> bool:
        """Whether an entry has a page that no request holds, only this cache."""
        return any(
            cache.pool.references(page) == counter[page]
            for cache, counter, pages in self._by_cache(entry)
            for page in pages
        )

    def _by_cache(self, entry: KeptPrefix) -> Iterable[tuple[PagedCache, Counter[int], tuple[int, ...]]]:
        return zip(self._pools.caches, self._references, entry.prefix.pages, strict=True)

    def _reachable_pages(self, spare: KeptPrefix | None) -> int:
        """Pages that would be free in every paged cache without any entry but one."""
        found = []
        for number, (cache, counter) in enumerate(zip(self._pools.caches, self._references, strict=True)):
            kept = frozenset(spare.prefix.pages[number]) if spare else frozenset()
            lonely = sum(
                cache.pool.references(page) == count for page, count in counter.items() if page not in kept
            )
            found.append(cache.pool.num_free + lonely)
        return min(found)

    def _drop(self, digest: bytes) -> None:
        entry = self._entries.pop(digest)
        self._pools.give_prefix(entry.prefix)
        self.nbytes -= entry.nbytes
        self.num_evictions += 1
        for _, counter, pages in self._by_cache(entry):
            for page in pages:
                counter[page] -= 1
                if counter[page] == 0:
                    del counter[page]
