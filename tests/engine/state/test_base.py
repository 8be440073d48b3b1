"""Windows are opened and committed in order; sizes are those of the tensors; faults are found."""

from __future__ import annotations

import pytest
import torch

from ocrquant.engine.state import NativePool, ReplayPool, SnapshotPool
from ocrquant.engine.state.replay import default_history
from ocrquant.errors import EngineError
from tests.engine.state.making import SPEC, Part, i32, make_layers, step

POOLS = [NativePool, ReplayPool, SnapshotPool]


@pytest.mark.parametrize("pool_class", POOLS)
def test_windows_in_order(pool_class):
    pool = pool_class(SPEC, num_slots=3, max_rows=16, window=4)
    with pytest.raises(EngineError, match="commit: expected a window of 1 requests, got none"):
        pool.commit([1], [0])
    with pytest.raises(EngineError, match="expected 1 to 4 rows, got 5"):
        pool.begin_window([1], 5)
    pool.begin_window([1, 2], 4)
    with pytest.raises(EngineError, match="expected no open window"):
        pool.begin_window([1], 4)
    with pytest.raises(AssertionError, match="open"):
        pool.check_integrity([])
    with pytest.raises(EngineError, match="got one of 2 requests"):
        pool.commit([1], [0])
    pool.commit(i32(1, 2), i32(0, 0))
    pool.check_integrity([1, 2])


@pytest.mark.parametrize("pool_class", POOLS)
def test_drafted_rows_need_a_window(pool_class):
    pool, layers = pool_class(SPEC, num_slots=3, max_rows=16, window=4), make_layers(1, 9, torch.bfloat16)
    step(pool, layers, drafted=[Part(0, 1, 0, 4)])
    pool.commit([1], [4])
    pool.begin_window = lambda *_: None
    with pytest.raises(EngineError, match="call begin_window before the step"):
        step(pool, layers, drafted=[Part(0, 1, 4, 4)])


@pytest.mark.parametrize("pool_class", POOLS)
def test_without_windows_nothing_can_be_drafted(pool_class):
    with pytest.raises(EngineError, match="window of 1"):
        pool_class(SPEC, num_slots=2, max_rows=4).begin_window([1], 1)


def test_bytes_per_slot_by_hand():
    layers, heads, groups, dim, channels = 2, 4, 2, 16, 128
    state, tail = heads * dim * dim * 4, 3 * channels * 2
    native = NativePool(SPEC, num_slots=3, max_rows=4)
    assert native.bytes_per_slot == layers * (state + tail)
    drafted = NativePool(SPEC, num_slots=3, max_rows=4, window=4)
    noted = heads * (dim + dim + 1) * 4
    assert drafted.bytes_per_slot == layers * (state + tail + 4 * (channels * 2 + noted))
    drafted = SnapshotPool(SPEC, num_slots=3, max_rows=4, window=4)
    assert drafted.bytes_per_slot == layers * (5 * state + tail + 4 * channels * 2)
    replay = ReplayPool(SPEC, num_slots=3, max_rows=4, window=4, history=12)
    ring = 16 * (heads * dim + groups * dim + heads) * 4
    assert replay.bytes_per_slot == layers * (state + tail + 4 * channels * 2 + ring) + 3 * 4


@pytest.mark.parametrize("window", [1, 2, 9, 16])
def test_default_history_leaves_room(window: int):
    assert default_history(window) >= max(1, 2 * window)
    ReplayPool(SPEC, num_slots=1, max_rows=1, window=window)


def test_refuses_a_history_without_room():
    with pytest.raises(EngineError, match="expected at least 8, got 7"):
        ReplayPool(SPEC, num_slots=1, max_rows=1, window=4, history=7)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("state", float("nan"), "state of slot 1 is not finite"),
        ("tail", float("inf"), "tail of slot 1 is not finite"),
        ("u", float("nan"), "u of slot 1 is not finite"),
        ("base", 99, "base 99 of slot 1"),
        ("write_pos", 11, "leave no room"),
        ("flush", 1, "folds at the wrong time"),
    ],
)
def test_integrity_finds_a_planted_fault(name: str, value: float, message: str):
    pool = ReplayPool(SPEC, num_slots=3, max_rows=16, window=4, history=12)
    layers = make_layers(1, 20, torch.bfloat16)
    step(pool, layers, prefill=[Part(0, 1, 0, 5)])
    step(pool, layers, drafted=[Part(0, 1, 5, 4)])
    pool.commit([1], [3])
    pool.check_integrity([1])
    pool.slot_tensors(1)[name].fill_(value)
    with pytest.raises(AssertionError, match=message):
        pool.check_integrity([1])
    pool.check_integrity([2])
