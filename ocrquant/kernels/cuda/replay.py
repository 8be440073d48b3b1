"""ReplaySSM steps on a GPU: rows verified behind checkpoints and records, folds where due, and cursors.

`replay_rows` equals `kernels.replay.replay_rows_reference` up to the order of sums and two bf16 for each fp32
factor of a product, an error of 2^-17 where records are rounded at 2^-9.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from ocrquant.kernels.contract import Contract
from ocrquant.kernels.cuda.arguments import CursorMove, ReplayWindow
from ocrquant.kernels.cuda.library import run
from ocrquant.kernels.gated_delta_rows.checks import check_rows
from ocrquant.kernels.replay.checks import check_cursors, check_records
from ocrquant.kernels.replay.layout import Cursors, Records

__all__ = ["KEY_DIMS", "MOST_RECORDS", "MOST_ROWS", "VALUE_MULTIPLE", "move_cursors", "replay_rows"]

KEY_DIMS = (64, 128)
VALUE_MULTIPLE = 64
MOST_ROWS, MOST_RECORDS = 16, 64
_CHUNK = 16  # bytes of a load
_BF16, _F32 = torch.bfloat16, torch.float32


def replay_rows(
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
    """Outputs of each request's rows behind its records, and a record of each row; folds where it is due.

    Two launches over the whole batch, one of the requests that fold and one of the others: which they are is
    read on the device, so that a captured graph serves every step.

    Args:
        mixed: bf16 [R, 2 G K + H V], q | k | v of each row; rows may be strided by a multiple of 8.
        a: bf16 [R, H].
        b: bf16 [R, H].
        a_log: float32 [H].
        dt_bias: float32 [H].
        records: float32 checkpoints of K = 64 or 128 and V a multiple of 64, bf16 rings; changed in place.
        cursors: Read only; a history of at most 64 records, windows of at most 16 rows.
        q_start: i32 [N + 1]; a request has at most `cursors.window` rows.
        slots: i32 [N]; below zero: padding, whose rows come out as zeros.
        out: bf16 [R, H V].
        key_heads: G.
        accepted: Whether the rows count already, and a fold takes them in.

    Raises:
        ShapeError: An argument is not as described.
        DeviceError: The kernels cannot run on the device of mixed.
    """
    contract = Contract("replay_rows", G=key_heads)
    check_records(contract, records)
    check_cursors(contract, cursors, records.u.shape[2])
    check_rows(contract, mixed, a, b, a_log, dt_bias, records.state, q_start, slots, out, key_heads)
    _check_kernel(contract, mixed, a_log, dt_bias, records, cursors, out)
    heads, key_dim, value_dim = records.state.shape[1:]
    tensors = {
        "mixed": mixed,
        "a": a,
        "b": b,
        "a_log": a_log,
        "dt_bias": dt_bias,
        "state": records.state,
        "u": records.u,
        "k": records.k,
        "log_gate": records.log_gate,
        "base": cursors.base,
        "write_pos": cursors.write_pos,
        "flush": cursors.flush,
        "q_start": q_start,
        "slots": slots,
        "out": out,
    }
    window = ReplayWindow(
        **{name: tensor.data_ptr() for name, tensor in tensors.items()},
        mixed_stride=mixed.stride(0),
        a_stride=a.stride(0),
        b_stride=b.stride(0),
        requests=len(slots),
        key_heads=key_heads,
        heads=heads,
        key_dim=key_dim,
        value_dim=value_dim,
        size=records.u.shape[2],
        history=cursors.history,
        accepted=accepted,
    )
    for folds in (False, True):
        run("replay_window", mixed.device, ctypes.byref(window), int(folds))


def _check_kernel(
    contract: Contract,
    mixed: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    records: Records,
    cursors: Cursors,
    out: Tensor,
) -> None:
    """What these kernels ask beyond the definition."""
    dtypes = {"mixed": mixed, "records.u": records.u, "records.state": records.state}
    wanted = {"mixed": _BF16, "records.u": _BF16, "records.state": _F32}
    for name, tensor in (*dtypes.items(), ("a_log", a_log), ("dt_bias", dt_bias)):
        dtype = wanted.get(name, _F32)
        contract.require(tensor.dtype == dtype, name, dtype, tensor.dtype)
    key_dim, value_dim = records.state.shape[-2:]
    contract.require(key_dim in KEY_DIMS, "records.state", f"K of {KEY_DIMS}", key_dim)
    fits = value_dim % VALUE_MULTIPLE == 0
    contract.require(fits, "records.state", f"V a multiple of {VALUE_MULTIPLE}", value_dim)
    is_wide = mixed.stride(0) % 8 == 0 or len(mixed) <= 1
    wide = (mixed, records.state, records.u, records.k, out)
    is_wide = is_wide and not any(tensor.data_ptr() % _CHUNK for tensor in wide)
    contract.require(is_wide, "mixed, records and out", "rows at multiples of 16 bytes", "others")
    contract.require(cursors.window <= MOST_ROWS, "cursors.window", f"at most {MOST_ROWS}", cursors.window)
    history = cursors.history
    contract.require(history <= MOST_RECORDS, "cursors.history", f"at most {MOST_RECORDS}", history)


def move_cursors(
    cursors: Cursors, size: int, slots: Tensor, *, accepted: Tensor | None = None, reset: bool = False
) -> None:
    """Counts the rows of the last step on the device; see `move_cursors_reference`.

    Args:
        cursors: Changed in place; no slot twice in one call.
        size: buf of the rings.
        slots: i32 [N]; below zero: padding.
        accepted: i32 [N], how many rows of each window count, or None: the step's single row.
        reset: The checkpoint is up to date: no records.

    Raises:
        ShapeError: An argument is not as described.
        DeviceError: The kernels cannot run on the device of slots.
    """
    contract = Contract("move_cursors")
    check_cursors(contract, cursors, size)
    contract.tensor("slots", slots, "N", torch.int32)
    if accepted is not None:
        contract.tensor("accepted", accepted, "N", torch.int32)
    move = CursorMove(
        base=cursors.base.data_ptr(),
        write_pos=cursors.write_pos.data_ptr(),
        flush=cursors.flush.data_ptr(),
        flushes=cursors.flushes.data_ptr(),
        slots=slots.data_ptr(),
        accepted=None if accepted is None else accepted.data_ptr(),
        requests=len(slots),
        size=size,
        history=cursors.history,
        window=cursors.window,
        reset=reset,
    )
    run("move_cursors", slots.device, ctypes.byref(move))
