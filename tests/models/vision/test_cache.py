"""What stays, what goes, and what is counted."""

from __future__ import annotations

from ocrquant.models.vision.cache import LeastFrequentCache


def cache(max_entries=3, max_bytes=100):
    return LeastFrequentCache(len, max_entries, max_bytes)


def strings(sizes):
    """Makes for a key a string as long as the key says."""
    return ["x" * size for size in sizes]


def test_missing_keys_are_made_once_and_together():
    calls = []

    def make(keys):
        calls.append(list(keys))
        return strings(keys)

    kept = cache()
    assert kept.get_many([2, 1, 2], make) == ["xx", "x", "xx"]
    assert kept.get_many([1, 3], make) == ["x", "xxx"]
    assert kept.get_many([3], make) == ["xxx"]
    assert calls == [[2, 1], [3]]
    counts = kept.counts
    assert (counts.hits, counts.misses, counts.evictions) == (3, 3, 0)
    assert (counts.entries, counts.num_bytes) == (3, 6)


def test_least_used_goes_first_not_the_oldest():
    kept = cache()
    kept.get_many([1, 1, 2, 3, 3], strings)
    kept.get_many([4], strings)
    assert 2 not in kept
    assert all(key in kept for key in (1, 3, 4))
    kept.get_many([5], strings)
    assert 4 not in kept
    assert kept.counts.evictions == 2


def test_among_equals_the_one_unused_longest_goes():
    kept = cache(max_entries=2)
    kept.get_many([1], strings)
    kept.get_many([2], strings)
    kept.get_many([3], strings)
    assert 1 not in kept
    assert 2 in kept


def test_bytes_are_bounded():
    kept = cache(max_entries=10, max_bytes=10)
    kept.get_many([4, 4, 5], strings)
    kept.get_many([6], strings)
    assert kept.counts.num_bytes == 10
    assert 5 not in kept
    kept.get_many([10], strings)
    assert (kept.counts.entries, kept.counts.num_bytes) == (1, 10)


def test_a_value_beyond_all_bytes_is_handed_out_and_not_kept():
    kept = cache(max_bytes=10)
    kept.get_many([3], strings)
    assert kept.get_many([11, 3], strings) == ["x" * 11, "xxx"]
    assert 11 not in kept
    assert kept.counts.evictions == 0


def test_a_batch_with_more_keys_than_room_gets_all_of_them():
    kept = cache(max_entries=1)
    assert kept.get_many([1, 2, 3], strings) == ["x", "xx", "xxx"]
    assert kept.counts.entries == 1


def test_bounds_hold_over_many_uses():
    kept = cache(max_entries=5, max_bytes=40)
    for i in range(500):
        kept.get_many([i % 7 + 1, (i * i) % 13 + 1], strings)
        assert kept.counts.entries <= 5
        assert kept.counts.num_bytes <= 40
    assert kept.counts.hits + kept.counts.misses == 1000


def test_cleared():
    kept = cache()
    kept.get_many([1, 2], strings)
    kept.clear()
    assert (kept.counts.entries, kept.counts.num_bytes, kept.counts.misses) == (0, 0, 2)
    assert kept.get_many([1], strings) == ["x"]
