"""The calls into csrc/cpu/replay."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ocrquant.kernels.extension import extension
from ocrquant.kernels.gated_delta_rows.native import native_rows
from ocrquant.kernels.replay.layout import Cursors, Records


def _native() -> ModuleType:
    native = extension()
    assert native is not None, "selection answers for it"
    return native


def _ring(native: ModuleType, records: Records, cursors: Cursors) -> Any:
    return native.ReplayRing(
        records.state.data_ptr(),
        records.u.data_ptr(),
        records.k.data_ptr(),
        records.log_gate.data_ptr(),
        records.u.dtype == torch.bfloat16,
        cursors.base.data_ptr(),
        cursors.write_pos.data_ptr(),
        cursors.flush.data_ptr(),
        records.u.shape[2],
        cursors.history,
    )


def replay_rows_native(
    mixed: Tensor,
    a: Tensor,
    b: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    records: Records,
    cursors: Cursors,
    q_start: Tensor,
    slots: Tensor,
    out: Tensor,
    key_heads: int,
    *,
    accepted: bool,
) -> None:
    """See `replay_rows_reference`; bf16 rows and fp32 checkpoints on a CPU."""
    native = _native()
    rows = native_rows(native, mixed, a, b, a_log, dt_bias, records.state, q_start, slots, out, key_heads)
    native.replay_rows(rows, _ring(native, records, cursors), accepted)


def replay_fold_native(records: Records, cursors: Cursors, slots: Tensor, fresh: Tensor) -> None:
    """See `replay_fold_reference`; fp32 checkpoints on a CPU."""
    native = _native()
    sizes = (len(slots), records.k.shape[1], *records.state.shape[-3:])
    native.replay_fold(_ring(native, records, cursors), slots.data_ptr(), fresh.data_ptr(), *sizes)


def move_cursors_native(
    cursors: Cursors, size: int, slots: Tensor, *, accepted: Tensor | None = None, reset: bool = False
) -> None:
    """See `move_cursors_reference`; on a CPU."""
    _native().move_cursors(
        cursors.base.data_ptr(),
        cursors.write_pos.data_ptr(),
        cursors.flush.data_ptr(),
        cursors.flushes.data_ptr(),
        size,
        cursors.history,
        cursors.window,
        slots.data_ptr(),
        0 if accepted is None else accepted.data_ptr(),
        len(slots),
        reset,
    )
