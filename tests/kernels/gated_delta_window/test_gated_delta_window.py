"""Windows give the bits of `gated_delta_rows`, token by token, and leave the state alone."""

from __future__ import annotations

import pytest
import torch

from ocrquant.kernels.gated_delta_rows import gated_delta_rows
from ocrquant.kernels.gated_delta_window import gated_delta_window
from ocrquant.kernels.gated_delta_window.reference import gated_delta_window_reference
from tests.kernels.delta_making import BF16, GROUPS, HEADS, i32, rows, same_bits, some


@pytest.mark.parametrize("dim", [32, 128])
def test_bits_of_the_rule_row_by_row(dim: int):
    inputs = rows(9, dim, dim)
    state = torch.randn(3, HEADS, dim, dim, generator=torch.Generator().manual_seed(1))
    before, states = state.clone(), torch.full((3, 5, HEADS, dim, dim), float("nan"))
    out = torch.empty(9, HEADS * dim, dtype=BF16)
    gated_delta_window(*inputs, state, states, i32(0, 4, 5, 9), i32(2, -1, 0), out, GROUPS)
    assert same_bits(state, before)
    assert not out[4].any()
    assert states[1].isnan().all()
    assert states[:, 4].isnan().all()
    for first, slot in ((0, 2), (5, 0)):
        for token in range(4):
            row, found = slice(first + token, first + token + 1), torch.empty(1, HEADS * dim, dtype=BF16)
            gated_delta_rows(*some(inputs, row), before, i32(0, 1), i32(slot), i32(0), found, GROUPS)
            assert same_bits(found, out[row])
            assert same_bits(states[slot, token], before[slot])


def test_the_reference_does_the_same():
    inputs = rows(4, 32, 32)
    state, out = torch.randn(1, HEADS, 32, 32), torch.empty(2, 4, HEADS * 32, dtype=BF16)
    states = torch.empty(2, 1, 4, HEADS, 32, 32)
    gated_delta_window(*inputs, state, states[0], i32(0, 4), i32(0), out[0], GROUPS)
    gated_delta_window_reference(*inputs, state, states[1], i32(0, 4), i32(0), out[1], GROUPS)
    torch.testing.assert_close(states[0], states[1], rtol=1e-5, atol=3e-6)


def test_more_rows_than_a_window_stay_out_of_the_neighbour():
    inputs = rows(4, 32, 32)
    state, states = torch.zeros(2, HEADS, 32, 32), torch.zeros(2, 3, HEADS, 32, 32)
    gated_delta_window(
        *inputs, state, states, i32(0, 4), i32(0), torch.empty(4, HEADS * 32, dtype=BF16), GROUPS
    )
    assert states[0].abs().amax((1, 2, 3)).gt(0).all()
    assert not states[1].any()
