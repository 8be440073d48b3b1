"""The causal convolution and the gated delta rule in Triton against their definitions."""

from __future__ import annotations

import pytest
import torch

from ocrquant.errors import ShapeError
from ocrquant.kernels.causal_conv import causal_conv
from ocrquant.kernels.causal_conv.reference import causal_conv_reference
from ocrquant.kernels.gated_delta_redo import WindowRecords, record_window, redo_window
from ocrquant.kernels.gated_delta_redo.reference import record_window_reference, redo_window_reference
from ocrquant.kernels.gated_delta_rows import gated_delta_rows
from ocrquant.kernels.gated_delta_rows.reference import gated_delta_rows_reference
from ocrquant.kernels.gated_delta_window import gated_delta_window
from ocrquant.kernels.gated_delta_window.reference import gated_delta_window_reference
from ocrquant.kernels.selection import choices
from tests.kernels.delta_making import GROUPS, HEADS, rows, same_bits
from tests.kernels.triton.cases.making import BF16, DEVICE, F32, IS_INTERPRETED, i32, padded, randn

NAN = float("nan")


def delta_rows(count, key_dim, value_dim, seed=0):
    return tuple(x.to(DEVICE) for x in rows(count, key_dim, value_dim, seed))


@pytest.mark.parametrize("channels", [48, 1040])
@pytest.mark.parametrize("is_recorded", [False, True])
def test_the_convolution(channels, is_recorded):
    x, weight = padded(randn(9, channels)), randn(channels, 4, seed=1)
    where = (i32(0, 1, 3, 6, 6, 9), i32(4, 0, -1, 2, 1), i32(0, 1, 0, 0, 0))
    results = []
    for op in (causal_conv, causal_conv_reference):
        tail, out = randn(5, 3, channels, seed=2), torch.full((9, channels), NAN, device=DEVICE).to(BF16)
        tail[0] = NAN  # of a slot that begins here
        record = torch.full((5, 4, channels), NAN, device=DEVICE).to(BF16) if is_recorded else None
        op(x, weight, tail, *where, out, record)
        results.append((tail, out) if record is None else (tail, out, record))
    assert choices()["causal_conv"].implementation == "triton"
    for ours, wanted in zip(*results, strict=True):
        if IS_INTERPRETED:
            assert same_bits(ours, wanted)
        else:
            torch.testing.assert_close(ours, wanted, rtol=2**-7, atol=0, equal_nan=True)
    assert not results[0][1][3:6].any()


@pytest.mark.parametrize(("key_dim", "value_dim"), [(16, 16), (32, 64), (128, 128)])
def test_the_rule(key_dim, value_dim):
    mixed, a, b, a_log, dt_bias = delta_rows(7, key_dim, value_dim)
    inputs = (padded(mixed), padded(a), padded(b), a_log, dt_bias)
    where = (i32(0, 1, 3, 4, 4, 7), i32(3, 0, -1, 1, 2), i32(0, 1, 0, 1, 0))
    results = []
    for op in (gated_delta_rows, gated_delta_rows_reference):
        state = torch.randn(4, HEADS, key_dim, value_dim, generator=torch.Generator().manual_seed(1))
        state = state.to(DEVICE)
        state[0] = NAN  # of a slot that begins here
        out = torch.full((7, HEADS * value_dim), NAN, device=DEVICE).to(BF16)
        op(*inputs, state, *where, out, GROUPS)
        results.append((state, out))
    assert choices()["gated_delta_rows"].implementation == "triton"
    (state, out), (wanted_state, wanted) = results
    torch.testing.assert_close(state, wanted_state, rtol=1e-5, atol=3e-6)
    torch.testing.assert_close(out, wanted, rtol=2**-7, atol=1e-5)
    assert not out[3].any()
    untouched = torch.randn(4, HEADS, key_dim, value_dim, generator=torch.Generator().manual_seed(1))
    assert same_bits(state[1].cpu(), untouched[1])  # begins here, but has no row


def test_windows_leave_the_state_and_can_be_done_again():
    dim, window = 16, 3
    mixed, a, b, *rest = delta_rows(4, dim, dim)
    inputs = (padded(mixed), padded(a), padded(b), *rest)
    where = (i32(0, 3, 4, 4), i32(2, -1, 0))
    results = []
    for window_op, record_op, redo_op in (
        (gated_delta_window, record_window, redo_window),
        (gated_delta_window_reference, record_window_reference, redo_window_reference),
    ):
        state = torch.randn(1, 3, HEADS, dim, dim, generator=torch.Generator().manual_seed(1)).to(DEVICE)
        states = torch.full((3, window, HEADS, dim, dim), NAN, device=DEVICE)
        shapes = ((3, window, HEADS, dim), (3, window, HEADS, dim), (3, window, HEADS))
        parts = tuple(torch.full(shape, NAN, device=DEVICE) for shape in shapes)
        outs = torch.full((2, 4, HEADS * dim), NAN, device=DEVICE).to(BF16)
        window_op(*inputs, state[0], states, *where, outs[0], GROUPS)
        record_op(*inputs, state[0], record_of(record_op, parts), *where, outs[1], GROUPS)
        before = state.clone()
        many = tuple(part.unsqueeze(0) for part in parts)
        redo_op(state, record_of(record_op, many), i32(2, -1, 0), i32(2, 9, -1))
        assert not torch.equal(state[0, 2], before[0, 2])
        assert same_bits(state[0, :2], before[0, :2])
        results.append((state, states, *parts, outs[0].float(), outs[1].float()))
    for op in ("gated_delta_window", "record_window", "redo_window"):
        assert choices()[op].implementation == "triton"
    for ours, wanted in zip(*results, strict=True):
        torch.testing.assert_close(ours, wanted, rtol=2**-7, atol=1e-5, equal_nan=True)
    state, states = results[0][:2]
    torch.testing.assert_close(state[0, 2], states[2, 1], rtol=1e-5, atol=1e-6)


def record_of(op, parts):
    return WindowRecords(*parts) if op is record_window else parts


def test_a_row_does_not_depend_on_the_batch():
    mixed, a, b, a_log, dt_bias = delta_rows(4, 32, 32)
    state = torch.zeros(3, HEADS, 32, 32, dtype=F32, device=DEVICE)
    together = torch.empty(4, HEADS * 32, dtype=BF16, device=DEVICE)
    gated_delta_rows(mixed, a, b, a_log, dt_bias, state, i32(0, 3, 4), i32(2, 0), i32(0, 0), together, GROUPS)
    alone, start = torch.empty(3, HEADS * 32, dtype=BF16, device=DEVICE), torch.zeros_like(state[:1])
    for t in range(3):  # and not on how a prompt is cut
        part = (mixed[t : t + 1], a[t : t + 1], b[t : t + 1])
        out = alone[t : t + 1]
        gated_delta_rows(*part, a_log, dt_bias, start, i32(0, 1), i32(0), i32(0), out, GROUPS)
    assert same_bits(alone, together[:3])
    assert same_bits(start[0], state[2])


def test_heads_that_are_no_power_of_two_are_refused():
    mixed, a, b, a_log, dt_bias = delta_rows(1, 48, 48)
    state = torch.zeros(1, HEADS, 48, 48, dtype=F32, device=DEVICE)
    out = torch.empty(1, HEADS * 48, dtype=BF16, device=DEVICE)
    with pytest.raises(ShapeError, match="a power of two"):
        gated_delta_rows(mixed, a, b, a_log, dt_bias, state, i32(0, 1), i32(0), i32(1), out, GROUPS)
