"""The calls into csrc/cpu/window_commit; any dtype."""

from __future__ import annotations

from torch import Tensor

from ocrquant.kernels.extension import extension


def commit_state_native(state: Tensor, states: Tensor, slots: Tensor, accepted: Tensor) -> None:
    """See `commit_state_reference`; on a CPU."""
    native = extension()
    assert native is not None, "selection answers for it"
    layers, num_slots, window = states.shape[:3]
    size = state[0, 0].numel() * state.element_size()
    addresses = (x.data_ptr() for x in (state, states, slots, accepted))
    native.commit_state(*addresses, len(slots), layers, num_slots, window, size)


def commit_tail_native(tail: Tensor, record: Tensor, slots: Tensor, accepted: Tensor) -> None:
    """See `commit_tail_reference`; on a CPU."""
    native = extension()
    assert native is not None, "selection answers for it"
    layers, num_slots, window, channels = record.shape
    addresses = (x.data_ptr() for x in (tail, record, slots, accepted))
    size = channels * tail.element_size()
    native.commit_tail(*addresses, len(slots), layers, num_slots, window, tail.shape[2], size)
