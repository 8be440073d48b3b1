"""Compiled ReplaySSM against the definition in fp64, the plain rule, and itself in other batches."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ocrquant.kernels.gated_delta_rows import gated_delta_rows
from ocrquant.kernels.replay import Cursors, Records, move_cursors, replay_fold, replay_rows
from ocrquant.kernels.replay.reference import replay_fold_reference, replay_rows_reference
from tests.kernels.delta_making import (
    BF16,
    GROUPS,
    HEADS,
    i32,
    plain_instructions,
    rows,
    same_bits,
    some,
    threads,
)

F32 = torch.float32


def make(
    slots: int, dim: int, window: int, history: int, kind: torch.dtype = F32, wide: torch.dtype = F32
) -> tuple[Records, Cursors]:
    """Random checkpoints, rings full of NaN."""
    size = 1 << (history - 1).bit_length()
    state = torch.randn(slots, HEADS, dim, dim, generator=torch.Generator().manual_seed(3)).to(wide)
    nan = float("nan")
    records = Records(
        state,
        torch.full((slots, HEADS, size, dim), nan).to(kind),
        torch.full((slots, GROUPS, size, dim), nan).to(kind),
        torch.full((slots, HEADS, size), nan).to(wide),
    )
    base, write_pos, flush, flushes = torch.zeros(4, slots, dtype=torch.int32)
    flush.fill_(int(2 * window > history))
    return records, Cursors(base, write_pos, flush, flushes, history=history, window=window)


def check_against_fp64(dim: int, window: int, history: int, kind: torch.dtype) -> None:
    records, cursors = make(3, dim, window, history, kind)
    exact, exact_cursors = make(
        3, dim, window, history, torch.float64 if kind == F32 else kind, torch.float64
    )
    generator, count = torch.Generator().manual_seed(window), window - (window > 3)
    size, is_single = records.u.shape[2], window == 1
    for step in range(16):
        inputs = rows(3 * count, dim, dim, seed=step)
        where = (i32(0, count, 2 * count, 3 * count), i32(2, -1, 0))
        out, wanted = (torch.empty(3 * count, HEADS * dim, dtype=BF16) for _ in range(2))
        replay_rows(*inputs, records, cursors, *where, out, GROUPS, accepted=is_single)
        replay_rows_reference(*inputs, exact, exact_cursors, *where, wanted, GROUPS, accepted=is_single)
        # A record that rounds the other way in bf16 shows in what follows.
        loose = 1e-5 if kind == F32 else 4e-3
        torch.testing.assert_close(out, wanted, rtol=2**-7, atol=loose)
        assert not out[count : 2 * count].any()
        accepted = torch.randint(0, count + 1, (3,), generator=generator, dtype=torch.int32)
        for c in (cursors, exact_cursors):
            move_cursors(c, size, where[1], accepted=None if is_single else accepted)
        torch.testing.assert_close(records.state.double(), exact.state, rtol=loose, atol=loose)
    assert int(cursors.flushes[[0, 2]].min()) > 0
    assert same_bits(records.state[1], make(3, dim, window, history)[0].state[1])  # padding only


@pytest.mark.parametrize("kind", [F32, BF16])
@pytest.mark.parametrize(
    ("dim", "window", "history"),
    [(32, 1, 1), (64, 1, 5), (32, 4, 8), (128, 16, 48), (64, 5, 17), (16, 3, 11)],
)
def test_equals_the_definition(dim: int, window: int, history: int, kind: torch.dtype):
    check_against_fp64(dim, window, history, kind)


def test_equals_the_definition_without_wide_registers():
    with plain_instructions():
        check_against_fp64(32, 4, 12, F32)


@pytest.mark.parametrize("dim", [16, 32, 64, 128])
@pytest.mark.parametrize("kind", [F32, BF16])
def test_a_history_of_one_is_the_plain_rule_bit_for_bit(dim: int, kind: torch.dtype):
    records, cursors = make(2, dim, 1, 1, kind)
    state = records.state.clone()
    for step in range(30):
        inputs = rows(2, dim, dim, seed=step)
        out, plain = (torch.empty(2, HEADS * dim, dtype=BF16) for _ in range(2))
        replay_rows(*inputs, records, cursors, i32(0, 1, 2), i32(1, 0), out, GROUPS, accepted=True)
        move_cursors(cursors, 1, i32(1, 0))
        gated_delta_rows(*inputs, state, i32(0, 1, 2), i32(1, 0), i32(0, 0), plain, GROUPS)
        assert same_bits(out, plain)
        assert same_bits(records.state, state)


def advance(
    records: Records, cursors: Cursors, inputs: tuple[Tensor, ...], slots: Tensor, accepted: Tensor
) -> Tensor:
    count = len(inputs[0]) // len(slots)
    starts = torch.arange(len(slots) + 1, dtype=torch.int32) * count
    out = torch.empty(len(inputs[0]), HEADS * 32, dtype=BF16)
    replay_rows(*inputs, records, cursors, starts, slots, out, GROUPS, accepted=False)
    move_cursors(cursors, records.u.shape[2], slots, accepted=accepted)
    return out


@pytest.mark.parametrize("count", [1, 2])
def test_bits_depend_on_the_request_only(count: int):
    """A request alone in slot 0, and the same one among others in slot 3."""
    alone, batch = make(1, 32, 4, 12), make(4, 32, 4, 12)
    batch[0].state[3] = alone[0].state[0]
    generator = torch.Generator().manual_seed(0)
    with threads(count):
        for step in range(12):
            inputs = rows(16, 32, 32, seed=step)
            accepted = torch.randint(0, 5, (4,), generator=generator, dtype=torch.int32)
            out = advance(*batch, inputs, i32(1, 3, 0, 2), accepted)
            wanted = advance(*alone, some(inputs, slice(4, 8)), i32(0), accepted[1:2].clone())
            assert same_bits(out[4:8], wanted)
    assert same_bits(batch[0].state[3], alone[0].state[0])
    assert int(alone[1].flushes[0]) > 0


def test_a_wrong_record_is_seen():
    """The comparison has teeth: one record's key a little off, and outputs behind it are far off."""
    outs = []
    for error in (0.0, 0.02):
        records, cursors = make(1, 32, 4, 12)
        inputs = rows(4, 32, 32)
        advance(records, cursors, inputs, i32(0), i32(3))
        records.k[0, 0, 1] += error
        outs.append(advance(records, cursors, rows(4, 32, 32, seed=1), i32(0), i32(0)))
    assert (outs[0].float() - outs[1].float()).abs().max() > 0.01


def test_rejected_drafts_leave_no_trace():
    results = []
    for seed in (1, 2):
        records, cursors = make(1, 32, 4, 12)
        inputs = some(rows(4, 32, 32), slice(0, 4))
        for x, other in zip(inputs[:3], rows(4, 32, 32, seed=seed)[:3], strict=True):
            x[2:] = other[2:]  # the drafts that are rejected
        advance(records, cursors, inputs, i32(0), i32(2))
        results.append(
            [advance(records, cursors, rows(4, 32, 32, seed=9 + n), i32(0), i32(3)) for n in range(3)]
        )
    assert all(same_bits(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("kind", [F32, BF16])
def test_fold_outside_a_step(kind: torch.dtype):
    records, cursors = make(3, 32, 4, 12, kind)
    advance(records, cursors, rows(12, 32, 32), i32(0, 1, 2), i32(4, 3, 0))
    before = records.state.clone()
    exact = Records(before.double(), records.u, records.k, records.log_gate.double())
    replay_fold(records, cursors, i32(0, 1, 2, -1), i32(0, 1, 0, 0))
    replay_fold_reference(exact, cursors, i32(0, 1, 2, -1), i32(0, 1, 0, 0))
    torch.testing.assert_close(records.state.double(), exact.state, rtol=1e-5, atol=3e-6)
    assert not torch.equal(records.state[0], before[0])
    assert same_bits(records.state[1:], before[1:])  # fresh, and nothing recorded
