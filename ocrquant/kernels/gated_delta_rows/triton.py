"""``gated_delta_rows`` in Triton, and what it shares with the rule over windows of drafts."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from ocrquant.kernels.triton_common.delta import gates, normalised
from ocrquant.kernels.triton_common.launch import launch, require_power

MOST_VALUES = 32
"""Columns of a state that one warp holds: 128 registers a thread at 128 keys."""


@triton.jit
def _step(held, queries, values, change, wanted, rate, bias, G: tl.constexpr, K: tl.constexpr):
    """One token.

    Args:
        held: The state in front of it, [K, columns].
        queries: Addresses of its q; its k lies G K further.
        values: Addresses of its v.
        change: Address of its a.
        wanted: Address of its b.
        rate: a_log of the head.
        bias: dt_bias of the head.
        G: Key heads.
        K: Keys.

    Returns:
        The state behind it, its output, its key, the value written, and what is left of the state.
    """
    q = normalised(tl.load(queries).to(tl.float32)) * K**-0.5
    k = normalised(tl.load(queries + G * K).to(tl.float32))
    beta, log_gate = gates(tl.load(change).to(tl.float32), tl.load(wanted).to(tl.float32), rate, bias)
    decay = tl.exp(log_gate)
    held = held * decay
    written = (tl.load(values).to(tl.float32) - tl.sum(held * k[:, None], axis=0)) * beta
    held = held + k[:, None] * written[None, :]
    return held, tl.sum(held * q[:, None], axis=0), k, written, decay


@triton.jit
def gated_delta_rows_kernel(
    mixed,
    mixed_stride,
    a,
    a_stride,
    b,
    b_stride,
    a_log,
    dt_bias,
    state,
    states,
    records,
    window,
    q_start,
    slots,
    fresh,
    out,
    H: tl.constexpr,
    G: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    VALUES: tl.constexpr,
):
    """Program (request, head, columns of its state); with states or records the state itself stays."""
    request, head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    key, value = tl.arange(0, K), part * VALUES + tl.arange(0, VALUES)
    start, stop = tl.load(q_start + request), tl.load(q_start + request + 1)
    slot = tl.load(slots + request).to(tl.int64)
    row = start.to(tl.int64)
    target = out + row * (H * V) + head * V + value
    if slot < 0:
        for _ in range(start, stop):
            tl.store(target, tl.zeros([VALUES], tl.bfloat16))
            target += H * V
        return
    if start == stop:
        return
    inside = key[:, None] * V + value[None, :]
    tile = state + (slot * H + head) * (K * V) + inside
    held = tl.load(tile)
    if fresh is not None:
        held = tl.where(tl.load(fresh + request) == 0, held, 0.0)
    queries = mixed + row * mixed_stride + (head // (H // G)) * K + key
    values = mixed + row * mixed_stride + 2 * G * K + head * V + value
    change, wanted = a + row * a_stride + head, b + row * b_stride + head
    rate, bias = tl.load(a_log + head), tl.load(dt_bias + head)
    place = slot * window * H + head
    for _ in range(start, stop):
        held, o, k, written, decay = _step(held, queries, values, change, wanted, rate, bias, G, K)
        tl.store(target, o.to(tl.bfloat16))
        if states is not None:
            tl.store(states + place * (K * V) + inside, held)
        if records[0] is not None:
            tl.store(records[1] + place * V + value, written)
            if part == 0:
                tl.store(records[0] + place * K + key, k)
                tl.store(records[2] + place, decay)
        queries += mixed_stride
        values += mixed_stride
        change += a_stride
        wanted += b_stride
        target += H * V
        place += H
    if states is None:
        if records[0] is None:
            tl.store(tile, held)


def launch_rows(
    op: str,
    rows: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
    state: Tensor,
    where: tuple[Tensor, Tensor, Tensor | None],
    out: Tensor,
    key_heads: int,
    *,
    states: Tensor | None = None,
    records: tuple[Any, Any, Any] = (None, None, None),
) -> None:
    """Launches the rule.

    Args:
        op: For errors.
        rows: mixed, a, b, a_log and dt_bias.
        state: fp32 [slots, H, K, V].
        where: q_start, slots and fresh.
        out: [R, H V].
        key_heads: G.
        states: [slots, T, H, K, V], where the state behind each token goes, or None.
        records: Where key, value and decay of each token go, or nothing.

    Raises:
        ShapeError: K or V is no power of two.
    """
    heads, key_dim, value_dim = state.shape[-3:]
    require_power(op, "K", key_dim)
    require_power(op, "V", value_dim)
    columns = min(value_dim, MOST_VALUES)
    kept = states if states is not None else records[0]
    mixed, a, b, a_log, dt_bias = rows
    strided = (mixed, mixed.stride(0), a, a.stride(0), b, b.stride(0), a_log, dt_bias)
    launch(
        gated_delta_rows_kernel,
        (len(where[1]), heads, value_dim // columns),
        *(*strided, state, states, records, 1 if kept is None else kept.shape[1], *where, out),
        num_warps=1,
        fuses=True,
        H=heads,
        G=key_heads,
        K=key_dim,
        V=value_dim,
        VALUES=columns,
    )


def gated_delta_rows_triton(
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
    """See `gated_delta_rows_reference`; bf16 rows and fp32 states on a GPU, K and V powers of two.

    Raises:
        ShapeError: K or V is none.
    """
    rows, where = (mixed, a, b, a_log, dt_bias), (q_start, slots, fresh)
    launch_rows("gated_delta_rows", rows, state, where, out, key_heads)
