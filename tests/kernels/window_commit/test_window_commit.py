"""Commits by hand and against the definition: nothing, some, all, padding, numbers out of range."""

from __future__ import annotations

import pytest
import torch

from ocrquant.kernels.window_commit import commit_state, commit_tail
from ocrquant.kernels.window_commit.reference import commit_state_reference, commit_tail_reference
from tests.kernels.delta_making import i32


def test_tail_by_hand():
    tail = torch.tensor([1.0, 2.0, 3.0]).view(1, 1, 3, 1)
    record = torch.tensor([4.0, 5.0, 6.0, 7.0, 8.0]).view(1, 1, 5, 1)
    wanted = {
        0: [1, 2, 3],
        1: [2, 3, 4],
        2: [3, 4, 5],
        3: [4, 5, 6],
        5: [6, 7, 8],
        9: [6, 7, 8],
        -2: [1, 2, 3],
    }
    for accepted, values in wanted.items():
        moved = tail.clone()
        commit_tail(moved, record, i32(0), i32(accepted))
        assert moved.flatten().tolist() == values


def test_state_by_hand():
    state, states = torch.zeros(1, 2, 1, 1, 1), torch.arange(1.0, 9.0).view(1, 2, 4, 1, 1, 1)
    for accepted, value in ((0, 0), (-7, 0), (1, 5), (4, 8), (2**31 - 1, 8)):
        moved = state.clone()
        commit_state(moved, states, i32(1), i32(accepted))
        assert moved.flatten().tolist() == [0, value]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_equals_the_reference(dtype: torch.dtype):
    torch.manual_seed(0)
    slots, accepted = i32(4, -1, 0, 2, 3), i32(3, 2**31 - 1, 0, 4, 1)
    state, states = torch.randn(3, 5, 2, 8, 4).to(dtype), torch.randn(3, 5, 4, 2, 8, 4).to(dtype)
    tail, record = torch.randn(3, 5, 3, 24).to(dtype), torch.randn(3, 5, 4, 24).to(dtype)
    for run, wanted, committed, source in (
        (commit_state, commit_state_reference, state, states),
        (commit_tail, commit_tail_reference, tail, record),
    ):
        found, expected = committed.clone(), committed.clone()
        run(found, source, slots, accepted)
        wanted(expected, source, slots, accepted)
        assert torch.equal(found, expected)
        assert torch.equal(found[:, 1], committed[:, 1])
        assert not torch.equal(found, committed)
