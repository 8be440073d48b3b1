"""Commits of windows in Triton: copies, bit for bit, for every number of accepted rows."""

from __future__ import annotations

import pytest
import torch

from ocrquant.kernels.selection import choices
from ocrquant.kernels.window_commit import commit_state, commit_tail
from ocrquant.kernels.window_commit import triton as kernels
from ocrquant.kernels.window_commit.reference import commit_state_reference, commit_tail_reference
from tests.kernels.triton.cases.making import BF16, DEVICE, F32, i32, raw

SLOTS = (3, -1, 0, 5, 1, 2)
ACCEPTED = (1, 2**31 - 1, 2, 9, -4, 3)
"""Beyond 0 .. T counts as the nearer end; what padding accepted is not looked at."""


def numbers(*shape, dtype, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


@pytest.mark.parametrize("dtype", [BF16, F32])
def test_commits_are_those_of_the_definition(monkeypatch, dtype):
    monkeypatch.setattr(kernels, "_MOST_COLUMNS", 16)  # several parts, the last one short
    record, states = numbers(2, 6, 4, 20, dtype=dtype, seed=1), numbers(2, 6, 4, 2, 3, 5, dtype=dtype, seed=2)
    tails, held = [], []
    for tail_op, state_op in ((commit_tail, commit_state), (commit_tail_reference, commit_state_reference)):
        tail, state = numbers(2, 6, 3, 20, dtype=dtype, seed=3), numbers(2, 6, 2, 3, 5, dtype=dtype, seed=4)
        tail_op(tail, record, i32(*SLOTS), i32(*ACCEPTED))
        state_op(state, states, i32(*SLOTS), i32(*ACCEPTED))
        tails.append(tail)
        held.append(state)
    assert {choices()[op].implementation for op in ("commit_tail", "commit_state")} == {"triton"}
    assert torch.equal(raw(tails[0]), raw(tails[1]))
    assert torch.equal(raw(held[0]), raw(held[1]))
    # Slot 4 is nobody's, slot 1 accepted nothing.
    for slot in (1, 4):
        assert torch.equal(raw(tails[0][:, slot]), raw(numbers(2, 6, 3, 20, dtype=dtype, seed=3)[:, slot]))
