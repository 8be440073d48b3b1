"""``commit_state`` and ``commit_tail`` in Triton: copies, so that no step waits for what was accepted."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ocrquant.kernels.triton_common.launch import launch, next_power

_MOST_COLUMNS = 4096
_TAPS = 3


@triton.jit
def _accepted_of(slots, accepted, most):
    """Slot and count of this program's request; the count is at most `most` and at least 0."""
    request = tl.program_id(0)
    slot = tl.load(slots + request).to(tl.int64)
    count = tl.minimum(tl.maximum(tl.load(accepted + request), 0), most)
    return slot, tl.where(slot < 0, 0, count)


@triton.jit
def commit_state_kernel(state, states, slots, accepted, num_slots, window, size, COLUMNS: tl.constexpr):
    """Program (request, layer, part of a state)."""
    slot, count = _accepted_of(slots, accepted, window)
    if count == 0:
        return
    place = tl.program_id(1).to(tl.int64) * num_slots + slot
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    is_inside = column < size
    source = states + (place * window + count - 1) * size + column
    tl.store(state + place * size + column, tl.load(source, mask=is_inside), mask=is_inside)


@triton.jit
def commit_tail_kernel(tail, record, slots, accepted, num_slots, window, channels, COLUMNS: tl.constexpr):
    """Program (request, layer, channels); the tail and the record are one row of inputs."""
    slot, count = _accepted_of(slots, accepted, window)
    if count == 0:
        return
    place = tl.program_id(1).to(tl.int64) * num_slots + slot
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    is_inside = column < channels
    tails = tail + place * 3 * channels + column
    records = record + place * window * channels + column
    # Those of the old tail that stay are read before anything is written.
    oldest = tl.load(
        tl.where(count < 3, tails + count * channels, records + (count - 3) * channels), mask=is_inside
    )
    older = tl.load(
        tl.where(count < 2, tails + (count + 1) * channels, records + (count - 2) * channels), mask=is_inside
    )
    old = tl.load(records + (count - 1) * channels, mask=is_inside)
    tl.store(tails, oldest, mask=is_inside)
    tl.store(tails + channels, older, mask=is_inside)
    tl.store(tails + 2 * channels, old, mask=is_inside)


def commit_state_triton(state: Tensor, states: Tensor, slots: Tensor, accepted: Tensor) -> None:
    """See `commit_state_reference`; on a GPU."""
    layers, num_slots, window = states.shape[:3]
    size = state[0, 0].numel()
    columns = min(next_power(size), _MOST_COLUMNS)
    launch(
        commit_state_kernel,
        (len(slots), layers, -(-size // columns)),
        *(state, states, slots, accepted, num_slots, window, size),
        num_warps=4,
        COLUMNS=columns,
    )


def commit_tail_triton(tail: Tensor, record: Tensor, slots: Tensor, accepted: Tensor) -> None:
    """See `commit_tail_reference`; on a GPU."""
    layers, num_slots, window, channels = record.shape
    assert tail.shape[2] == _TAPS, "the kernel holds three inputs in registers"
    columns = min(next_power(channels), _MOST_COLUMNS)
    launch(
        commit_tail_kernel,
        (len(slots), layers, -(-channels // columns)),
        *(tail, record, slots, accepted, num_slots, window, channels),
        num_warps=4,
        COLUMNS=columns,
    )
