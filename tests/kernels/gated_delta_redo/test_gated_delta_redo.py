"""Windows give the bits of `gated_delta_rows`, and what is done again gives those of its states."""

from __future__ import annotations

import pytest
import torch

from ocrquant.kernels.gated_delta_redo import WindowRecords, record_window, redo_window
from ocrquant.kernels.gated_delta_redo.reference import record_window_reference, redo_window_reference
from ocrquant.kernels.gated_delta_rows import gated_delta_rows
from tests.kernels.delta_making import BF16, GROUPS, HEADS, i32, rows, same_bits, some


def make_records(layers, slots, window, dim, dtype=torch.float32):
    shapes = (layers, slots, window, HEADS, dim), (layers, slots, window, HEADS)
    nan = float("nan")
    k, u, decay = (torch.full(shapes[i], nan, dtype=dtype) for i in (0, 0, 1))
    return WindowRecords(k, u, decay)


@pytest.mark.parametrize("dim", [32, 128])
def test_bits_of_the_rule_row_by_row(dim: int):
    inputs = rows(9, dim, dim)
    state = torch.randn(3, HEADS, dim, dim, generator=torch.Generator().manual_seed(1))
    before, records = state.clone(), make_records(1, 3, 5, dim)
    out = torch.empty(9, HEADS * dim, dtype=BF16)
    record_window(*inputs, state, records.layer(0), i32(0, 4, 5, 9), i32(2, -1, 0), out, GROUPS)
    assert same_bits(state, before)
    assert not out[4].any()
    assert records.k[0, 1].isnan().all()
    assert records.u[0, :, 4].isnan().all()
    states = {0: state.clone()}
    for first, slot in ((0, 2), (5, 0)):
        for token in range(4):
            row, found = slice(first + token, first + token + 1), torch.empty(1, HEADS * dim, dtype=BF16)
            gated_delta_rows(*some(inputs, row), before, i32(0, 1), i32(slot), i32(0), found, GROUPS)
            assert same_bits(found, out[row])
            states[token + 1] = before.clone()
        for count in (0, 1, 3, 4):
            moved = state.clone()[None]
            redo_window(moved, records, i32(slot), i32(count))
            assert same_bits(moved[0, slot], states[count][slot])
            others = [s for s in range(3) if s != slot]
            assert same_bits(moved[0, others], state[others])


def test_padding_and_numbers_out_of_range():
    torch.manual_seed(0)
    records = make_records(2, 3, 4, 16)
    for part in (records.k, records.u, records.decay):
        part.normal_()
    state = torch.randn(2, 3, HEADS, 16, 16)
    found, expected = state.clone(), state.clone()
    redo_window(found, records, i32(2, -1, 0, 1), i32(2**31 - 1, 9, -7, 2))
    redo_window_reference(expected, (records.k, records.u, records.decay), i32(2, 0, 1), i32(4, 0, 2))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert same_bits(found[:, 0], state[:, 0])


def test_the_references_do_the_same_in_float64_exactly():
    inputs = tuple(x.double() for x in rows(4, 32, 32))
    state = torch.randn(1, HEADS, 32, 32, dtype=torch.float64)
    records = make_records(1, 1, 4, 32, torch.float64)
    out, alone = (torch.empty(4, HEADS * 32, dtype=torch.float64) for _ in range(2))
    parts = tuple(getattr(records.layer(0), name) for name in ("k", "u", "decay"))
    record_window_reference(*inputs, state, parts, i32(0, 4), i32(0), out, GROUPS)
    moved, walked = state.clone()[None], state.clone()
    redo_window(moved, records, i32(0), i32(3))
    gated_delta_rows(*some(inputs, slice(0, 3)), walked, i32(0, 3), i32(0), i32(0), alone[:3], GROUPS)
    assert torch.equal(moved[0], walked)
    assert torch.equal(out[:3], alone[:3])


def test_native_against_the_reference():
    inputs = rows(4, 32, 32)
    state, out = torch.randn(1, HEADS, 32, 32), torch.empty(2, 4, HEADS * 32, dtype=BF16)
    found, expected = make_records(1, 1, 4, 32), make_records(1, 1, 4, 32)
    record_window(*inputs, state, found.layer(0), i32(0, 4), i32(0), out[0], GROUPS)
    parts = tuple(getattr(expected.layer(0), name) for name in ("k", "u", "decay"))
    record_window_reference(*inputs, state, parts, i32(0, 4), i32(0), out[1], GROUPS)
    for name in ("k", "u", "decay"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=1e-5, atol=3e-6)


def test_more_rows_than_a_window_stay_out_of_the_neighbour():
    inputs, records = rows(4, 32, 32), make_records(1, 2, 3, 32)
    out = torch.empty(4, HEADS * 32, dtype=BF16)
    record_window(*inputs, torch.zeros(2, HEADS, 32, 32), records.layer(0), i32(0, 4), i32(0), out, GROUPS)
    assert records.k[0, 0].isfinite().all()
    assert records.k[0, 1].isnan().all()
