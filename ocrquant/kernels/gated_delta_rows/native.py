"""The call into csrc/cpu/gated_delta_rows, and what all kernels of the rule are told of their rows."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from torch import Tensor

from ocrquant.kernels.extension import extension

HEAD_MULTIPLE = 16
"""The compiled kernels take head sizes that are multiples of this: whole registers everywhere."""


def native_rows(
    native: ModuleType,
    mixed: Tensor,
    a: Tensor,
    b: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    q_start: Tensor,
    slots: Tensor,
    out: Tensor,
    key_heads: int,
) -> Any:
    """The rows of a call as C++ takes them; `state` gives the sizes of heads."""
    return native.DeltaRows(
        mixed.data_ptr(),
        mixed.stride(0),
        a.data_ptr(),
        a.stride(0),
        b.data_ptr(),
        b.stride(0),
        a_log.data_ptr(),
        dt_bias.data_ptr(),
        q_start.data_ptr(),
        slots.data_ptr(),
        out.data_ptr(),
        len(slots),
        key_heads,
        *state.shape[-3:],
    )


def gated_delta_rows_native(
    mixed: Tensor,
    a: Tensor,
    b: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    q_start: Tensor,
    slots: Tensor,
    fresh: Tensor,
    out: Tensor,
    key_heads: int,
) -> None:
    """See `gated_delta_rows_reference`; bf16 rows and fp32 states on a CPU."""
    native = extension()
    assert native is not None, "selection answers for it"
    rows = native_rows(native, mixed, a, b, a_log, dt_bias, state, q_start, slots, out, key_heads)
    native.gated_delta_rows(rows, state.data_ptr(), fresh.data_ptr())
