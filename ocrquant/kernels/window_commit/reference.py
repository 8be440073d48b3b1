"""Commits of windows in plain torch: the definition."""

from __future__ import annotations

import torch
from torch import Tensor


def commit_state_reference(state: Tensor, states: Tensor, slots: Tensor, accepted: Tensor) -> None:
    """state[:, slot] becomes states[:, slot, accepted - 1]; with none accepted it stays.

    Args:
        state: [layers, slots, ...].
        states: [layers, slots, T, ...] in the dtype of state.
        slots: i32 [N]. Below zero: padding, nothing moves and its accepted is not looked at.
        accepted: i32 [N]; numbers beyond 0 .. T count as the nearer end.
    """
    for slot, count in zip(slots.tolist(), accepted.clamp(0, states.shape[2]).tolist(), strict=True):
        if slot >= 0 and count > 0:
            state[:, slot] = states[:, slot, count - 1]


def commit_tail_reference(tail: Tensor, record: Tensor, slots: Tensor, accepted: Tensor) -> None:
    """The tail moves on over the accepted inputs of the record that `causal_conv` wrote.

    Args:
        tail: [layers, slots, 3, C].
        record: [layers, slots, T, C] in the dtype of tail.
        slots: i32 [N]; padding as in `commit_state_reference`.
        accepted: i32 [N], likewise.
    """
    taps = tail.shape[2]
    for slot, count in zip(slots.tolist(), accepted.clamp(0, record.shape[2]).tolist(), strict=True):
        if slot >= 0:
            inputs = torch.cat([tail[:, slot], record[:, slot, :count]], dim=1)
            tail[:, slot] = inputs[:, -taps:]
