"""The call into csrc/cpu/gated_delta_window."""

from __future__ import annotations

from torch import Tensor

from ocrquant.kernels.extension import extension
from ocrquant.kernels.gated_delta_rows.native import native_rows


def gated_delta_window_native(
    mixed: Tensor,
    a: Tensor,
    b: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    states: Tensor,
    q_start: Tensor,
    slots: Tensor,
    out: Tensor,
    key_heads: int,
) -> None:
    """See `gated_delta_window_reference`; bf16 rows and fp32 states on a CPU."""
    native = extension()
    assert native is not None, "selection answers for it"
    rows = native_rows(native, mixed, a, b, a_log, dt_bias, state, q_start, slots, out, key_heads)
    native.gated_delta_window(rows, state.data_ptr(), states.data_ptr(), states.shape[1])
