"""Counters of rows by hand: what grows, where tokens lie, and when pages are copied."""

import numpy as np

from ocrquant.engine.moving_rows import CacheRows, MovingRows
from ocrquant.engine.page_table import PageTable


def make_rows():
    """A window of three of slot 2 at place 3, and a single row of slot 1 at place 0; pages of two tokens."""
    table = PageTable(3, 4, page_size=2)
    table.enter(2, 0, [10, 11, 12])
    table.enter(1, 0, [20])
    lengths, places = np.array([6, 1], np.int32), np.array([[3, 4, 5, 0], [13, 14, 15, 10]], np.int32)
    cache = CacheRows(table, np.zeros(4, np.int32), np.zeros((2, 4), np.int32))
    return MovingRows([2, 1], [3, 0], [3, 1], lengths, [places], [cache]), lengths, places, cache


def test_counters_grow_by_the_tokens_of_their_request():
    rows, lengths, places, cache = make_rows()
    rows.move_to([3, 0])
    assert cache.slot_mapping.tolist() == [23, 24, 25, 40]
    assert cache.page_table.tolist() == [[10, 11, 12, 0], [20, 0, 0, 0]]
    cache.table.enter(2, 3, [13])
    rows.move_to([5, 1])
    assert lengths.tolist() == [8, 2]
    assert places.tolist() == [[5, 6, 7, 1], [15, 16, 17, 11]]
    assert cache.slot_mapping.tolist() == [25, 26, 27, 41]
    assert cache.page_table.tolist() == [[10, 11, 12, 13], [20, 0, 0, 0]]


def test_pages_are_copied_only_when_some_were_entered():
    rows, _, _, cache = make_rows()
    rows.move_to([3, 0])
    cache.page_table[...] = -1
    rows.move_to([4, 1])
    assert (cache.page_table == -1).all()
    cache.table.enter(0, 0, [7])
    rows.move_to([5, 1])
    assert cache.page_table.tolist() == [[10, 11, 12, 0], [20, 0, 0, 0]]
