"""ReplaySSM in Triton: windows behind their records, folds, cursors.

A step launches two kernels over the same grid, one for the slots that keep their checkpoint and one for
those that fold; a program whose slot is the other's returns at once. So the launches of a step never depend
on what was accepted.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from ocrquant.kernels.replay.layout import Cursors, Records
from ocrquant.kernels.triton_common.delta import log_gate_sum
from ocrquant.kernels.triton_common.delta_window import advance, folded_keys, gates_of, ring_of
from ocrquant.kernels.triton_common.launch import launch, next_power, require_power

_LEAST_ROWS = 16
_MOST_VALUES = 32
_MOST_KEYS = 16
"""Columns and keys of a piece. All four warps hold every key of sixteen rows: at 128 keys 1880 bytes of
registers spill, at 32 keys and 64 columns 456, with these none (Triton 3.9)."""


@triton.jit
def replay_rows_kernel(
    mixed,
    mixed_stride,
    a,
    a_stride,
    b,
    b_stride,
    constants,
    state,
    records,
    cursors,
    q_start,
    slots,
    out,
    H: tl.constexpr,
    G: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    T: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    RING: tl.constexpr,
    FOLDS: tl.constexpr,
    IS_ACCEPTED: tl.constexpr,
):
    """Program (request, head, columns of its values), for slots whose flush is FOLDS."""
    request, head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    slot = tl.load(slots + request).to(tl.int64)
    start = tl.load(q_start + request)
    value, token = part * VALUES + tl.arange(0, VALUES), tl.arange(0, T)
    is_there = token < tl.load(q_start + request + 1) - start
    row = start.to(tl.int64) + token
    target = out + row[:, None] * (H * V) + head * V + value[None, :]
    if slot < 0:
        if not FOLDS:
            tl.store(
                target, tl.zeros([T, VALUES], tl.bfloat16), mask=is_there[:, None] & (value[None, :] >= 0)
            )
        return
    due = tl.load(cursors[2] + slot)
    if FOLDS:
        is_others = due == 0
    else:
        is_others = due != 0
    if is_others:
        return
    if tl.load(q_start + request + 1) == start:
        return
    place = (tl.load(cursors[0] + slot), tl.load(cursors[1] + slot))
    ring = ring_of(records, slot, head, H, G, K, V, RING)
    tile = state + (slot * H + head) * (K * V) + value
    queries = mixed + row * mixed_stride + (head // (H // G)) * K
    values = mixed + row * mixed_stride + 2 * G * K + head * V
    beta, log_gate = gates_of(a, a_stride, b, b_stride, constants, row, is_there, head)
    is_leader = (part == 0) & (head % (H // G) == 0)
    rows = (queries, values, beta, log_gate, is_there, target)
    advance(rows, tile, ring, place, value, part == 0, is_leader, G, K, V, KEYS, RING, FOLDS, IS_ACCEPTED)


@triton.jit
def replay_fold_kernel(
    state,
    records,
    cursors,
    slots,
    fresh,
    H: tl.constexpr,
    G: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    RING: tl.constexpr,
):
    """Program (request, head, columns of its values)."""
    request, head = tl.program_id(0), tl.program_id(1)
    slot = tl.load(slots + request).to(tl.int64)
    if slot < 0:
        return
    if tl.load(fresh + request) != 0:
        return
    place = (tl.load(cursors[0] + slot), tl.load(cursors[1] + slot))
    if place[1] == 0:
        return
    value = tl.program_id(2) * VALUES + tl.arange(0, VALUES)
    ring = ring_of(records, slot, head, H, G, K, V, RING)
    total = log_gate_sum(ring, place[0], place[1], RING)
    tile = state + (slot * H + head) * (K * V) + value[None, :]
    for first in range(0, K, KEYS):
        key = first + tl.arange(0, KEYS)
        addresses = tile + key[:, None] * V
        folded = folded_keys(tl.load(addresses), ring, place, key, total, value, K, V, RING)
        tl.store(addresses, folded)


@triton.jit(do_not_specialize=["count"])
def move_cursors_kernel(
    cursors,
    flushes,
    slots,
    accepted,
    count,
    SIZE: tl.constexpr,
    HISTORY: tl.constexpr,
    WINDOW: tl.constexpr,
    RESETS: tl.constexpr,
    COUNT: tl.constexpr,
):
    """One program for all requests."""
    request = tl.arange(0, COUNT)
    slot = tl.load(slots + request, mask=request < count, other=-1).to(tl.int64)
    is_there = slot >= 0
    base = tl.load(cursors[0] + slot, mask=is_there, other=0)
    held = tl.load(cursors[1] + slot, mask=is_there, other=0)
    folded = tl.load(cursors[2] + slot, mask=is_there, other=0) != 0
    if RESETS:
        base, held = tl.zeros_like(base), tl.zeros_like(held)
    else:
        if accepted is not None:
            new = tl.load(accepted + request, mask=is_there, other=0)
            new, taken_in = tl.minimum(tl.maximum(new, 0), WINDOW), 0
        else:
            new, taken_in = tl.full([COUNT], 1, tl.int32), 1
        before = tl.load(flushes + slot, mask=is_there, other=0)
        tl.store(flushes + slot, before + folded.to(tl.int32), mask=is_there)
        base = tl.where(folded, (base + held + taken_in) & (SIZE - 1), base)
        held = tl.where(folded, new - taken_in, held + new)
    tl.store(cursors[0] + slot, base, mask=is_there)
    tl.store(cursors[1] + slot, held, mask=is_there)
    tl.store(cursors[2] + slot, (held + 2 * WINDOW > HISTORY).to(tl.int32), mask=is_there)


def _sizes(op: str, records: Records) -> dict[str, Any]:
    heads, key_dim, value_dim = records.state.shape[-3:]
    require_power(op, "K", key_dim)
    require_power(op, "V", value_dim)
    columns = min(value_dim, _MOST_VALUES)
    sizes = {"H": heads, "G": records.k.shape[1], "K": key_dim, "V": value_dim}
    return sizes | {"KEYS": min(key_dim, _MOST_KEYS), "VALUES": columns, "RING": records.u.shape[2]}


def replay_rows_triton(
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
    """See `replay_rows_reference`; bf16 rows and fp32 checkpoints on a GPU, K and V powers of two.

    Raises:
        ShapeError: K or V is none.
    """
    sizes = _sizes("replay_rows", records)
    rows = (mixed, mixed.stride(0), a, a.stride(0), b, b.stride(0), (a_log, dt_bias))
    kept = (records.state, (records.u, records.k, records.log_gate))
    where = ((cursors.base, cursors.write_pos, cursors.flush), q_start, slots, out)
    for folds in (False, True):
        launch(
            replay_rows_kernel,
            (len(slots), sizes["H"], sizes["V"] // sizes["VALUES"]),
            *(*rows, *kept, *where),
            num_warps=4,
            fuses=True,
            T=max(_LEAST_ROWS, next_power(cursors.window)),
            FOLDS=folds,
            IS_ACCEPTED=accepted,
            **sizes,
        )


def replay_fold_triton(records: Records, cursors: Cursors, slots: Tensor, fresh: Tensor) -> None:
    """See `replay_fold_reference`; fp32 checkpoints on a GPU, K and V powers of two.

    Raises:
        ShapeError: K or V is none.
    """
    sizes = _sizes("replay_fold", records)
    launch(
        replay_fold_kernel,
        (len(slots), sizes["H"], sizes["V"] // sizes["VALUES"]),
        *(records.state, (records.u, records.k, records.log_gate)),
        *((cursors.base, cursors.write_pos), slots, fresh),
        num_warps=4,
        fuses=True,
        **sizes,
    )


def move_cursors_triton(
    cursors: Cursors, size: int, slots: Tensor, *, accepted: Tensor | None = None, reset: bool = False
) -> None:
    """See `move_cursors_reference`; on a GPU."""
    launch(
        move_cursors_kernel,
        (1 if len(slots) else 0,),
        *((cursors.base, cursors.write_pos, cursors.flush), cursors.flushes, slots, accepted, len(slots)),
        num_warps=1,
        SIZE=size,
        HISTORY=cursors.history,
        WINDOW=cursors.window,
        RESETS=reset,
        COUNT=next_power(len(slots)),
    )
