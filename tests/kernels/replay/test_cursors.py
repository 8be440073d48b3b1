"""Cursors by hand, and the compiled ones against the definition over random histories."""

from __future__ import annotations

import random

import pytest
import torch

from ocrquant.errors import ShapeError
from ocrquant.kernels.replay import Cursors, move_cursors
from ocrquant.kernels.replay.reference import move_cursors_reference
from tests.kernels.delta_making import i32

NAMES = ("base", "write_pos", "flush", "flushes")


def cursors(slots: int, history: int, window: int) -> Cursors:
    base, write_pos, flush, flushes = torch.zeros(4, slots, dtype=torch.int32)
    flush.fill_(int(2 * window > history))
    return Cursors(base, write_pos, flush, flushes, history=history, window=window)


def state_of(c: Cursors, slot: int = 0) -> list[int]:
    return [int(getattr(c, name)[slot]) for name in NAMES]


@pytest.mark.parametrize("move", [move_cursors, move_cursors_reference])
def test_windows_by_hand(move):
    # Room for 12 records, windows of 4: a fold is due as soon as more than 4 are accepted.
    c = cursors(1, 12, 4)
    for accepted, wanted in (
        (4, [0, 4, 0, 0]),
        (0, [0, 4, 0, 0]),
        (3, [0, 7, 1, 0]),  # the next step folds these seven and keeps what it accepts
        (4, [7, 4, 0, 1]),
        (4, [7, 8, 1, 1]),
        (0, [15, 0, 0, 2]),
        (4, [15, 4, 0, 2]),
        (4, [15, 8, 1, 2]),
        (2, [7, 2, 0, 3]),  # 15 + 8 wraps at 16
    ):
        move(c, 16, i32(0), accepted=i32(accepted))
        assert state_of(c) == wanted


@pytest.mark.parametrize("move", [move_cursors, move_cursors_reference])
def test_single_rows_by_hand(move):
    c = cursors(1, 3, 1)
    for wanted in ([0, 1, 0, 0], [0, 2, 1, 0], [3, 0, 0, 1], [3, 1, 0, 1], [3, 2, 1, 1], [2, 0, 0, 2]):
        move(c, 4, i32(0))  # the fold of a full history takes the row of the same step in
        assert state_of(c) == wanted
    move(c, 4, i32(0), reset=True)
    assert state_of(c) == [0, 0, 0, 2]


def test_a_history_of_one_folds_every_step():
    c = cursors(1, 1, 1)
    for step in range(1, 4):
        move_cursors(c, 1, i32(0))
        assert state_of(c) == [0, 0, 1, step]


@pytest.mark.parametrize(("window", "history", "size"), [(1, 1, 1), (4, 8, 8), (5, 17, 32), (16, 64, 64)])
def test_equals_the_reference_and_always_leaves_room(window: int, history: int, size: int):
    chance = random.Random(history)
    found, wanted = cursors(4, history, window), cursors(4, history, window)
    for _ in range(300):
        slots = i32(*(chance.choice([-1, slot]) for slot in range(4)))
        counts = i32(*(chance.choice([0, window, chance.randint(0, window), 2**31 - 1]) for _ in range(4)))
        kind = chance.random()
        how = {"reset": True} if kind < 0.05 else {} if window == 1 or kind < 0.3 else {"accepted": counts}
        for move, c in ((move_cursors, found), (move_cursors_reference, wanted)):
            move(c, size, slots, **how)
        assert all(torch.equal(getattr(found, name), getattr(wanted, name)) for name in NAMES)
        assert int(found.write_pos.max()) + window <= history
        assert int(found.write_pos.min()) >= 0
    assert int(found.flushes.min()) > 10


def test_refuses_a_history_without_room():
    with pytest.raises(ShapeError, match=r"8 \.\. 16 records"):
        move_cursors(cursors(1, 7, 4), 16, i32(0))
