"""ReplaySSM in Triton against the definition in fp64: windows, folds, rings that wrap, padding, cursors."""

from __future__ import annotations

import pytest
import torch

from ocrquant.kernels.gated_delta_rows.reference import gated_delta_rows_reference
from ocrquant.kernels.replay import Cursors, Records, move_cursors, replay_fold, replay_rows
from ocrquant.kernels.replay.reference import (
    move_cursors_reference,
    replay_fold_reference,
    replay_rows_reference,
)
from ocrquant.kernels.selection import choices
from tests.kernels.delta_making import same_bits
from tests.kernels.triton.cases.making import BF16, DEVICE, F32, i32, padded

F64, HEADS = torch.float64, 2


def make(slots, dim, window, history, kind=F32, wide=F32, groups=1):
    """Random checkpoints, rings full of NaN; the last place of a ring is record 0's."""
    size = 1 << (history - 1).bit_length()
    state = torch.randn(slots, HEADS, dim, dim, generator=torch.Generator().manual_seed(3)).to(DEVICE, wide)

    def ring(*shape, dtype):
        return torch.full(shape, torch.nan, device=DEVICE).to(dtype)

    records = Records(
        state,
        ring(slots, HEADS, size, dim, dtype=kind),
        ring(slots, groups, size, dim, dtype=kind),
        ring(slots, HEADS, size, dtype=wide),
    )
    base, write_pos, flush, flushes = torch.zeros(4, slots, dtype=torch.int32, device=DEVICE)
    base.fill_(size - 1)
    flush.fill_(int(2 * window > history))
    return records, Cursors(base, write_pos, flush, flushes, history=history, window=window)


def hold(records, cursors, slot, count, seed=0):
    """Puts records into a slot as if they had been accepted."""
    generator = torch.Generator().manual_seed(seed)
    for record in range(count):
        place = (int(cursors.base[slot]) + record) % records.u.shape[2]
        for ring in (records.u, records.k, records.log_gate):
            number = torch.randn(ring[slot][:, place].shape, generator=generator)
            if ring is records.k:
                number = torch.nn.functional.normalize(number, dim=-1)
            if ring is records.log_gate:
                number = -number.abs() / 8
            # Of bf16 in every precision, so that rings of all kinds hold the same.
            ring[slot][:, place] = number.to(BF16).to(DEVICE, ring.dtype)
    cursors.write_pos[slot] = count
    cursors.flush[slot] = int(count + 2 * cursors.window > cursors.history)


def delta_rows(count, dim, seed, groups=1):
    generator = torch.Generator().manual_seed(seed)
    mixed = torch.randn(count, (2 * groups + HEADS) * dim, generator=generator)
    a, b = torch.randn(2, count, HEADS, generator=generator)
    mixed, a, b = (padded(x.to(BF16).to(DEVICE)) for x in (mixed, a, b))
    return mixed, a, b, torch.linspace(-4, 1, HEADS, device=DEVICE), torch.zeros(HEADS, device=DEVICE) + 0.3


@pytest.mark.parametrize(
    ("dim", "window", "history", "kind", "groups"),
    [(16, 1, 1, F32, 2), (16, 4, 24, F32, 1), (32, 5, 17, BF16, 2), (128, 16, 64, F32, 1)],
)
def test_windows_equal_the_definition(dim, window, history, kind, groups):
    """Slot 2 folds in the first step, slot 0 does not; slot 1 has no rows, and one request is padding."""
    records, cursors = make(3, dim, window, history, kind, groups=groups)
    exact, exact_cursors = make(3, dim, window, history, F64 if kind == F32 else kind, F64, groups)
    count, size, is_single = window - (window > 3), records.u.shape[2], window == 1
    for held, slot in ((history - window, 2), (max(0, history - 2 * window - 1), 0)):
        for kept in ((records, cursors), (exact, exact_cursors)):
            hold(*kept, slot, held)
    assert is_single or cursors.flush[[0, 2]].tolist() == [0, 1]
    where = (i32(0, count, 2 * count, 2 * count, 3 * count), i32(2, -1, 1, 0))
    for step in range(2):
        inputs = delta_rows(3 * count, dim, step, groups)
        out, wanted = (
            torch.full((3 * count, HEADS * dim), torch.nan, device=DEVICE).to(BF16) for _ in range(2)
        )
        replay_rows(*inputs, records, cursors, *where, out, groups, accepted=is_single)
        replay_rows_reference(*inputs, exact, exact_cursors, *where, wanted, groups, accepted=is_single)
        loose = 1e-5 if kind == F32 else 4e-3
        torch.testing.assert_close(out, wanted, rtol=2**-7, atol=loose)
        assert not out[count : 2 * count].any()
        accepted = i32(count - step, 7, 1)
        for op, moved in ((move_cursors, cursors), (move_cursors_reference, exact_cursors)):
            op(moved, size, i32(2, -1, 0), accepted=None if is_single else accepted)
        for name in ("base", "write_pos", "flush", "flushes"):
            assert torch.equal(getattr(cursors, name), getattr(exact_cursors, name)), name
        for name in ("state", "u", "k", "log_gate"):
            ours, theirs = getattr(records, name), getattr(exact, name)
            torch.testing.assert_close(ours.double(), theirs.double(), rtol=loose, atol=loose, equal_nan=True)
    assert {choices()[op].implementation for op in ("replay_rows", "move_cursors")} == {"triton"}
    assert int(cursors.flushes[2]) > 0
    # Slot 1 had no rows: neither checkpoint nor ring is touched.
    assert same_bits(records.state[1], make(3, dim, window, history)[0].state[1])
    assert bool(records.u[1].isnan().all())
    assert bool(records.k[1].isnan().all())


def test_a_history_of_one_is_the_plain_rule():
    records, cursors = make(1, 32, 1, 1)
    state = records.state.clone()
    for step in range(3):
        inputs = delta_rows(1, 32, step)
        out, plain = (torch.empty(1, HEADS * 32, dtype=BF16, device=DEVICE) for _ in range(2))
        replay_rows(*inputs, records, cursors, i32(0, 1), i32(0), out, 1, accepted=True)
        move_cursors(cursors, 1, i32(0))
        gated_delta_rows_reference(*inputs, state, i32(0, 1), i32(0), i32(0), plain, 1)
        torch.testing.assert_close(out, plain, rtol=2**-7, atol=1e-5)
        torch.testing.assert_close(records.state, state, rtol=1e-5, atol=3e-6)


def advance(records, cursors, seed, accepted):
    out = torch.empty(4, HEADS * 16, dtype=BF16, device=DEVICE)
    inputs = delta_rows(4, 16, seed)
    replay_rows(*inputs, records, cursors, i32(0, 4), i32(0), out, 1, accepted=False)
    move_cursors(cursors, records.u.shape[2], i32(0), accepted=i32(accepted))
    return out


def test_a_wrong_record_is_seen():
    outs = []
    for error in (0.0, 0.1):
        records, cursors = make(1, 16, 4, 12)
        advance(records, cursors, 0, 3)
        records.k[0, 0, 1] += error
        outs.append(advance(records, cursors, 1, 0))
    assert (outs[0].float() - outs[1].float()).abs().max() > 0.01


def test_a_fold_outside_a_step():
    records, cursors = make(3, 16, 4, 32)
    hold(records, cursors, 0, 21)  # more than one product takes
    hold(records, cursors, 1, 3)
    before = records.state.clone()
    exact = Records(before.double(), records.u, records.k, records.log_gate.double())
    where = (i32(0, 1, 2, -1), i32(0, 1, 0, 0))
    replay_fold(records, cursors, *where)
    replay_fold_reference(exact, cursors, *where)
    assert choices()["replay_fold"].implementation == "triton"
    torch.testing.assert_close(records.state.double(), exact.state, rtol=1e-5, atol=3e-6)
    assert not torch.equal(records.state[0], before[0])
    assert same_bits(records.state[1:], before[1:])  # fresh, and nothing recorded


@pytest.mark.parametrize("is_reset", [False, True])
def test_cursors_move_as_defined(is_reset):
    moved = []
    for op in (move_cursors, move_cursors_reference):
        _, cursors = make(6, 16, 4, 12)
        for tensor, values in (
            (cursors.base, (0, 3, 15, 7, 2, 1)),
            (cursors.write_pos, (0, 4, 8, 5, 1, 2)),
            (cursors.flush, (0, 1, 1, 0, 1, 0)),
        ):
            tensor.copy_(i32(*values))
        # Beyond 0 .. T counts as the nearer end; what padding accepted is not looked at.
        op(cursors, 16, i32(5, 2, -1, 1, 0), accepted=i32(9, -3, 2**31 - 1, 2, 4), reset=is_reset)
        moved.append([getattr(cursors, name).tolist() for name in ("base", "write_pos", "flush", "flushes")])
    assert moved[0] == moved[1]
