"""The calls into csrc/cpu/gated_delta_redo."""

from __future__ import annotations

from torch import Tensor

from ocrquant.kernels.extension import extension
from ocrquant.kernels.gated_delta_rows.native import native_rows


def record_window_native(
    mixed: Tensor,
    a: Tensor,
    b: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    records: tuple[Tensor, Tensor, Tensor],
    q_start: Tensor,
    slots: Tensor,
    out: Tensor,
    key_heads: int,
) -> None:
    """See `record_window_reference`; bf16 rows and fp32 states on a CPU."""
    native = extension()
    assert native is not None, "selection answers for it"
    rows = native_rows(native, mixed, a, b, a_log, dt_bias, state, q_start, slots, out, key_heads)
    parts = tuple(part.data_ptr() for part in records)
    native.record_window(rows, state.data_ptr(), parts, records[0].shape[1])


def redo_window_native(
    state: Tensor, records: tuple[Tensor, Tensor, Tensor], slots: Tensor, accepted: Tensor
) -> None:
    """See `redo_window_reference`; fp32 on a CPU."""
    native = extension()
    assert native is not None, "selection answers for it"
    layers, num_slots, heads, key_dim, value_dim = state.shape
    parts = tuple(part.data_ptr() for part in records)
    sizes = (len(slots), layers, num_slots, records[0].shape[2], heads, key_dim, value_dim)
    native.redo_window(state.data_ptr(), parts, slots.data_ptr(), accepted.data_ptr(), sizes)
