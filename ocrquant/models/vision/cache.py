"""A cache that drops what was asked for least often, bounded in entries and in bytes.

Page sizes of a batch of documents repeat (scans of one device, crops of one layout) among many that come
once: counting uses keeps the former, where dropping the oldest would lose them to a run of the latter. Knows
nothing of what it keeps but its size.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["CacheCounts", "LeastFrequentCache"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class CacheCounts:
    """What a cache has done so far.

    Attributes:
        hits: Keys found.
        misses: Keys that had to be made.
        evictions: Entries dropped for room.
        entries: Kept now.
        num_bytes: Kept now.
    """

    hits: int
    misses: int
    evictions: int
    entries: int
    num_bytes: int


@dataclass(slots=True)
class _Entry(Generic[V]):
    value: V
    num_bytes: int
    uses: int
    last_use: int


class LeastFrequentCache(Generic[K, V]):
    """Keeps values by key.

    Args:
        size_of: Bytes of a value.
        max_entries: Most values kept.
        max_bytes: Most bytes kept; a larger value is handed out but not kept.
    """

    def __init__(self, size_of: Callable[[V], int], max_entries: int, max_bytes: int) -> None:
        self._size_of = size_of
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._entries: dict[K, _Entry[V]] = {}
        self._clock = 0
        self._num_bytes = 0
        self._hits = self._misses = self._evictions = 0

    @property
    def counts(self) -> CacheCounts:
        """What it has done so far."""
        return CacheCounts(self._hits, self._misses, self._evictions, len(self._entries), self._num_bytes)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def get_many(self, keys: Sequence[K], make: Callable[[list[K]], Sequence[V]]) -> list[V]:
        """Values of all keys; those that are missing are made in one call.

        Args:
            keys: In any order, repeats allowed; each counts as a use.
            make: Values of distinct keys, in their order.
        """
        missing = list(dict.fromkeys(key for key in keys if key not in self._entries))
        made = dict(zip(missing, make(missing), strict=True)) if missing else {}
        self._misses += len(missing)
        self._hits += len(keys) - len(missing)
        uses: dict[K, int] = {}
        for key in keys:
            uses[key] = uses.get(key, 0) + 1
        found = {}
        for key, count in uses.items():
            if key not in made:
                entry = self._entries[key]
                entry.uses += count
                entry.last_use = self._tick()
                found[key] = entry.value
        for key, value in made.items():
            self._keep(key, value, uses[key])
        return [made[key] if key in made else found[key] for key in keys]

    def clear(self) -> None:
        """Drops everything; the counts of what was done stay."""
        self._entries.clear()
        self._num_bytes = 0

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    def _keep(self, key: K, value: V, uses: int) -> None:
        num_bytes = self._size_of(value)
        if num_bytes > self._max_bytes or self._max_entries < 1:
            return
        while len(self._entries) >= self._max_entries or self._num_bytes + num_bytes > self._max_bytes:
            self._drop(min(self._entries, key=self._rank))
        self._entries[key] = _Entry(value, num_bytes, uses, self._tick())
        self._num_bytes += num_bytes

    def _rank(self, key: K) -> tuple[int, int]:
        entry = self._entries[key]
        return entry.uses, entry.last_use

    def _drop(self, key: K) -> None:
        self._num_bytes -= self._entries.pop(key).num_bytes
        self._evictions += 1
