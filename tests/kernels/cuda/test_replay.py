"""The ReplaySSM kernels' own source, emulated, against the definition in fp64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ocrquant.errors import ShapeError
from ocrquant.kernels.cuda import move_cursors, replay_rows
from ocrquant.kernels.replay import Cursors, Records
from ocrquant.kernels.replay.reference import move_cursors_reference, replay_rows_reference
from tests.kernels.cuda.making import backwards, needs_emulation, without_barriers
from tests.kernels.delta_making import BF16, GROUPS, HEADS, i32, rows, same_bits

pytestmark = needs_emulation

Step = tuple[tuple[Tensor, ...], tuple[Tensor, Tensor]]
# (K, V, T, L); buf is the next power of two: one that wraps often, pico's, Qwen3.5's.
SHAPES = [(64, 64, 4, 9), (64, 128, 16, 48), (128, 128, 16, 64)]


def make(
    slots: int, shape: tuple[int, int, int, int], wide: torch.dtype = torch.float32
) -> tuple[Records, Cursors]:
    """Random checkpoints, rings full of NaN."""
    key_dim, value_dim, window, history = shape
    size = 1 << (history - 1).bit_length()
    generator = torch.Generator().manual_seed(3)
    state = torch.randn(slots, HEADS, key_dim, value_dim, generator=generator).to(wide)
    nan = float("nan")
    records = Records(
        state,
        torch.full((slots, HEADS, size, value_dim), nan, dtype=BF16),
        torch.full((slots, GROUPS, size, key_dim), nan, dtype=BF16),
        torch.full((slots, HEADS, size), nan, dtype=wide),
    )
    base, write_pos, flush, flushes = torch.zeros(4, slots, dtype=torch.int32)
    base.fill_(size - 3)  # the ring wraps in the first window
    flush.fill_(int(2 * window > history))
    return records, Cursors(base, write_pos, flush, flushes, history=history, window=window)


def step_inputs(
    shape: tuple[int, int, int, int], counts: tuple[int, ...], slots: tuple[int, ...], seed: int
) -> Step:
    starts = torch.tensor([0, *counts], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    return rows(sum(counts), shape[0], shape[1], seed=seed), (starts, i32(*slots))


def run_both(shape: tuple[int, int, int, int], steps: int, *, accepted: bool = False) -> int:
    """Several steps with random acceptance; returns how often a slot folded."""
    records, cursors = make(3, shape)
    exact, exact_cursors = make(3, shape, torch.float64)
    generator, window = torch.Generator().manual_seed(shape[2]), shape[2]
    slots = (2, -1, 0)
    for step in range(steps):
        counts = (1, 1, 1) if accepted else (window, 3, max(1, window - step % 3))
        inputs, where = step_inputs(shape, counts, slots, step)
        out, wanted = (torch.full((sum(counts), HEADS * shape[1]), torch.nan, dtype=BF16) for _ in range(2))
        replay_rows(*inputs, records, cursors, *where, out, GROUPS, accepted=accepted)
        replay_rows_reference(*inputs, exact, exact_cursors, *where, wanted, GROUPS, accepted=accepted)
        # A record that rounds the other way in bf16 shows in what follows.
        torch.testing.assert_close(out, wanted, rtol=2**-7, atol=4e-3)
        assert not out[counts[0] : counts[0] + counts[1]].any()
        taken = (
            None
            if accepted
            else torch.minimum(
                torch.randint(0, window + 1, (3,), generator=generator, dtype=torch.int32), i32(*counts)
            )
        )
        for c in (cursors, exact_cursors):
            move_cursors_reference(c, records.u.shape[2], where[1], accepted=taken)
        torch.testing.assert_close(records.state.double(), exact.state, rtol=4e-3, atol=4e-3)
    assert same_bits(records.state[1], make(3, shape)[0].state[1])  # a slot that nobody uses
    assert records.u[1].isnan().all()
    return int(cursors.flushes.sum())


@pytest.mark.parametrize("shape", SHAPES)
def test_equals_the_definition(shape: tuple[int, int, int, int]):
    assert run_both(shape, 8) > 1


def test_folds_take_in_rows_that_count_already():
    assert run_both((64, 64, 1, 5), 14, accepted=True) == 4


def one_step(shape: tuple[int, int, int, int], *, folds: bool) -> tuple[Tensor, Records]:
    """A step behind ten records."""
    records, cursors = make(1, shape)
    for ring in (records.u, records.k, records.log_gate):
        ring.copy_(torch.randn(ring.shape, generator=torch.Generator().manual_seed(1)) * 0.1)
    records.log_gate.abs_().neg_()
    cursors.write_pos.fill_(10)
    cursors.flush.fill_(int(folds))
    inputs, where = step_inputs(shape, (16,), (0,), 5)
    out = torch.empty(16, HEADS * shape[1], dtype=BF16)
    replay_rows(*inputs, records, cursors, *where, out, GROUPS, accepted=False)
    return out, records


@pytest.mark.parametrize("folds", [False, True])
def test_no_barrier_is_missing(folds: bool):
    out, records = one_step(SHAPES[1], folds=folds)
    with backwards():
        other, other_records = one_step(SHAPES[1], folds=folds)
    assert same_bits(out, other)
    for name in ("state", "u", "k", "log_gate"):
        assert torch.equal(getattr(records, name), getattr(other_records, name)), name


def test_a_missing_barrier_would_be_seen():
    out, _ = one_step(SHAPES[1], folds=True)
    with without_barriers():
        other, _ = one_step(SHAPES[1], folds=True)
    assert not same_bits(out, other)


def test_a_fold_changes_no_output_and_no_record():
    """Drafts are verified behind the old checkpoint, whether or not it is folded."""
    (out, kept), (other, folded) = (one_step(SHAPES[1], folds=f) for f in (False, True))
    assert same_bits(out, other)
    assert same_bits(kept.u, folded.u)
    assert not torch.equal(kept.state, folded.state)
    start = make(1, SHAPES[1])[0].state
    assert torch.equal(kept.state, start)


def test_two_bf16_for_each_factor_are_close_to_fp32():
    """Outputs in fp64 of the very same records differ by bf16's own rounding and hardly more."""
    shape = SHAPES[2]
    out, _ = one_step(shape, folds=False)
    records, cursors = make(1, shape, torch.float64)
    for ring in (records.u, records.k, records.log_gate):
        ring.copy_((torch.randn(ring.shape, generator=torch.Generator().manual_seed(1)) * 0.1).to(BF16))
    log_gate = torch.randn(records.log_gate.shape, generator=torch.Generator().manual_seed(1)) * 0.1
    records.log_gate.copy_(-log_gate.abs())
    cursors.write_pos.fill_(10)
    cursors.flush.fill_(0)
    inputs, where = step_inputs(shape, (16,), (0,), 5)
    wanted = torch.empty(16, HEADS * shape[1], dtype=torch.float64)
    wide = (*[x.double() for x in inputs[:1]], inputs[1].double(), inputs[2], *inputs[3:])
    replay_rows_reference(*wide, records, cursors, *where, wanted, GROUPS, accepted=False)
    flips = (out != wanted.to(BF16)).float().mean()
    assert flips < 0.02
    torch.testing.assert_close(out.double(), wanted, rtol=2**-8 * 1.01, atol=2e-4)


def test_bits_depend_on_the_request_only():
    """A request alone in slot 0, and the same one among others in slot 2."""
    shape = SHAPES[0]
    (alone, one), (batch, many) = make(1, shape), make(3, shape)
    batch.state[2] = alone.state[0]
    for step in range(4):
        inputs, where = step_inputs(shape, (4, 4, 4), (0, 2, 1), step)
        own = (*(x[4:8] for x in inputs[:3]), *inputs[3:])
        out, wanted = (torch.empty(n, HEADS * shape[1], dtype=BF16) for n in (12, 4))
        replay_rows(*inputs, batch, many, *where, out, GROUPS, accepted=False)
        replay_rows(*own, alone, one, i32(0, 4), i32(0), wanted, GROUPS, accepted=False)
        assert same_bits(out[4:8], wanted)
        move_cursors(many, batch.u.shape[2], where[1], accepted=i32(1, 3, 4))
        move_cursors(one, batch.u.shape[2], i32(0), accepted=i32(3))
    assert same_bits(batch.state[2], alone.state[0])
    assert int(one.flushes) > 0


def test_a_wrong_record_is_seen():
    shape = SHAPES[0]
    outs = []
    for error in (0.0, 0.2):
        records, cursors = make(1, shape)
        for step in range(2):
            inputs, where = step_inputs(shape, (4,), (0,), step)
            out = torch.empty(4, HEADS * shape[1], dtype=BF16)
            replay_rows(*inputs, records, cursors, *where, out, GROUPS, accepted=False)
            records.k[0, 0, (size := records.u.shape[2]) - 2] += error
            move_cursors_reference(cursors, size, where[1], accepted=i32(3))
        outs.append(out)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(*outs, rtol=2**-7, atol=4e-3)


def test_cursors_move_as_the_reference_says():
    generator = torch.Generator().manual_seed(0)
    for window, history, size in ((4, 12, 16), (16, 64, 64), (1, 5, 8)):
        found, wanted = ([torch.zeros(5, dtype=torch.int32) for _ in range(4)] for _ in range(2))
        both = [Cursors(*parts, history=history, window=window) for parts in (found, wanted)]
        for step in range(60):
            slots = torch.randperm(5, generator=generator)[:4].int()
            slots[torch.randint(0, 4, (1,), generator=generator)] = -1
            counts = torch.randint(-2, window + 3, (4,), generator=generator, dtype=torch.int32)
            how: dict[str, object] = {"reset": True} if step % 17 == 16 else {}
            if window > 1:
                how["accepted"] = counts
            move_cursors(both[0], size, slots, **how)  # type: ignore[arg-type]
            move_cursors_reference(both[1], size, slots, **how)  # type: ignore[arg-type]
            for one, other in zip(found, wanted, strict=True):
                assert torch.equal(one, other)
        assert int(found[3].min()) > 3


def test_refuses_what_its_contract_excludes():
    records, cursors = make(1, (64, 64, 4, 12))
    inputs, where = step_inputs((64, 64, 4, 12), (4,), (0,), 0)
    out = torch.empty(4, HEADS * 64, dtype=BF16)
    fp32 = Records(records.state, records.u.float(), records.k.float(), records.log_gate)
    with pytest.raises(ShapeError, match=r"records.u: expected torch.bfloat16, got torch.float32"):
        replay_rows(*inputs, fp32, cursors, *where, out, GROUPS, accepted=False)
    long = Cursors(cursors.base, cursors.write_pos, cursors.flush, cursors.flushes, history=80, window=4)
    records, _ = make(1, (64, 64, 4, 80))
    with pytest.raises(ShapeError, match="at most 64, got 80"):
        replay_rows(*inputs, records, long, *where, out, GROUPS, accepted=False)
