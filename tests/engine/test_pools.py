"""Pages and slots: all or nothing, shared pages, and an integrity check that sees every planted fault."""

import random

import numpy as np
import pytest

from ocrquant.engine.config import EngineConfig
from ocrquant.engine.page_pool import PagePool
from ocrquant.engine.page_table import PageTable
from ocrquant.engine.pools import Copies, Pools
from ocrquant.engine.slot_pool import SlotPool


def config(**settings):
    return EngineConfig(
        **{"max_positions": 64, "num_pages": 10, "page_size": 4, "max_requests": 3} | settings
    )


def test_pages_come_back_when_the_last_reference_goes():
    pool = PagePool(4)
    pages = pool.take(3)
    pool.share(pages[:1])
    pool.give(pages)
    assert pool.num_free == 3
    assert pages[0] not in pool.free_pages
    pool.give(pages[:1])
    assert sorted(pool.free_pages) == [0, 1, 2, 3]
    with pytest.raises(AssertionError, match="is free already"):
        pool.give(pages[:1])
    with pytest.raises(AssertionError, match="cannot be shared"):
        pool.share(pages[:1])


def test_the_null_slot_is_never_given():
    pool = SlotPool(2)
    assert {pool.take(), pool.take()} == {1, 2}
    with pytest.raises(AssertionError):
        pool.take()
    with pytest.raises(AssertionError, match="slot 0"):
        pool.give(0)


@pytest.mark.parametrize("drafter_pages", [0, 12])
def test_take_writes_the_tables_and_give_returns_everything(drafter_pages):
    pools = Pools(config(drafter_pages=drafter_pages))
    holding = pools.take(9)
    assert holding.num_pages == 3
    assert len(pools.caches) == (2 if drafter_pages else 1)
    for cache in pools.caches:
        assert len(set(cache.table.pages[holding.slot, :3].tolist())) == 3
    assert pools.grow(holding, 12)
    assert holding.num_pages == 3
    assert pools.grow(holding, 13)
    assert holding.num_pages == 4
    pools.check_integrity([holding])
    pools.give(holding)
    pools.check_integrity([])
    assert pools.kv.pool.num_free == 10
    assert pools.slots.num_free == 3


@pytest.mark.parametrize(
    ("settings", "tokens"),
    [
        ({}, 41),  # no target pages
        ({"drafter_pages": 2}, 9),  # no drafter pages
        ({"num_slots": 1}, 4),  # no slot
    ],
)
def test_what_cannot_be_had_whole_changes_nothing(settings, tokens):
    pools = Pools(config(**settings))
    holding = pools.take(4)
    free = [cache.pool.free_pages for cache in pools.caches], pools.slots.free_slots
    assert pools.take(tokens) is None
    assert pools.grow(holding, 64) is False
    assert ([cache.pool.free_pages for cache in pools.caches], pools.slots.free_slots) == free
    pools.check_integrity([holding])


@pytest.mark.parametrize(("length", "copied"), [(8, False), (10, True)])
def test_a_prefix_shares_full_pages_and_replaces_the_partial_one(length, copied):
    pools = Pools(config(drafter_pages=10))
    first = pools.take(12)
    prefix = pools.share_prefix(first, length)
    second = pools.take(15, prefix)
    copies = pools.copies_of(second, prefix)
    for cache in pools.caches:
        mine, other = cache.held(second), cache.held(first)
        assert mine[:2] == other[:2]
        assert not set(mine[2:]) & set(other)
    if copied:
        pairs = [(c.held(first)[2], c.held(second)[2]) for c in pools.caches]
        assert copies == Copies(*pairs)
    else:
        assert copies is None
    pools.check_integrity([first, second], [prefix])
    pools.give(first)
    pools.check_integrity([second], [prefix])
    pools.give_prefix(prefix)
    pools.give(second)
    pools.check_integrity([])
    assert pools.kv.pool.num_free == 10


def test_random_transactions_lose_nothing():
    rng = random.Random(0)
    pools = Pools(config(num_pages=24, drafter_pages=20, max_requests=6))
    holdings, prefixes = [], []
    refused = 0
    for _ in range(5000):
        action = rng.random()
        if action < 0.35:
            prefix = rng.choice(prefixes) if prefixes and rng.random() < 0.5 else None
            tokens = rng.randint(1 if prefix is None else prefix.num_tokens + 1, 40)
            holding = pools.take(tokens, prefix)
            refused += holding is None
            holdings += [holding] if holding else []
        elif action < 0.55 and holdings:
            refused += not pools.grow(rng.choice(holdings), rng.randint(1, 48))
        elif action < 0.85 and holdings:
            pools.give(holdings.pop(rng.randrange(len(holdings))))
        elif holdings and len(prefixes) < 3:
            holding = rng.choice(holdings)
            prefixes.append(pools.share_prefix(holding, rng.randint(1, min(16, 4 * holding.num_pages))))
        elif prefixes:
            pools.give_prefix(prefixes.pop(rng.randrange(len(prefixes))))
        pools.check_integrity(holdings, prefixes)
    assert refused > 100
    for holding in holdings:
        pools.give(holding)
    for prefix in prefixes:
        pools.give_prefix(prefix)
    pools.check_integrity([])
    assert (pools.kv.pool.num_free, pools.drafter.pool.num_free, pools.slots.num_free) == (24, 20, 6)


def lose_a_page(pools, holding):
    pools.kv.pool.take(1)


def lose_a_slot(pools, holding):
    pools.slots.take()


def write_another_page(pools, holding):
    table = pools.kv.table.pages
    table[holding.slot, 0] = next(p for p in range(10) if p not in table[holding.slot, : holding.num_pages])


def name_a_page_twice(pools, holding):
    pools.kv.table.pages[holding.slot, 0] = pools.kv.table.pages[holding.slot, 1]


def give_too_early(pools, holding):
    pools.kv.pool.give([int(pools.kv.table.pages[holding.slot, 0])])


def move_a_cell(pools, holding):
    pools.kv.table.cells[holding.slot, 5] += 1


def forget_pages(pools, holding):
    holding.num_pages -= 1


FAULTS = [lose_a_page, lose_a_slot, write_another_page, name_a_page_twice, give_too_early]
FAULTS += [move_a_cell, forget_pages]


@pytest.mark.parametrize("plant", FAULTS)
def test_planted_fault_is_seen(plant):
    pools = Pools(config())
    holding = pools.take(9)
    pools.check_integrity([holding])
    plant(pools, holding)
    with pytest.raises(AssertionError):
        pools.check_integrity([holding])


def test_a_holding_that_nobody_claims_is_seen():
    pools = Pools(config())
    pools.take(9)
    with pytest.raises(AssertionError, match="nobody"):
        pools.check_integrity([])


def test_tables_are_int32_and_as_wide_as_the_longest_sequence():
    pools = Pools(config(max_positions=65))
    assert pools.kv.table.pages.dtype == pools.kv.table.cells.dtype == np.int32
    assert pools.kv.table.pages.shape == (4, 17)
    assert pools.kv.table.cells.shape == (4, 68)


def test_cells_follow_from_pages_and_changes_are_counted():
    table = PageTable(2, 3, page_size=4)
    table.enter(1, 0, [5, 2])
    table.enter(1, 2, [7])
    assert table.pages.tolist() == [[0, 0, 0], [5, 2, 7]]
    assert table.cells[1].tolist() == [20, 21, 22, 23, 8, 9, 10, 11, 28, 29, 30, 31]
    assert table.num_changes == 2
    table.check_integrity(1, 3)
