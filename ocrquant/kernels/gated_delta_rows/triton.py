"""``gated_delta_rows`` in Triton."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ocrquant.kernels.triton_common.delta import gates, normalised
from ocrquant.kernels.triton_common.launch import launch, require_power

_MOST_VALUES = 32
"""Columns of a state that one warp holds: 128 registers a thread at 128 keys."""


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
    """Program (request, head, columns of its state)."""
    request, head = tl.program_id(0), tl.program_id(1)
    key, value = tl.arange(0, K), tl.program_id(2) * VALUES + tl.arange(0, VALUES)
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
    tile = state + (slot * H + head) * (K * V) + key[:, None] * V + value[None, :]
    held = tl.where(tl.load(fresh + request) == 0, tl.load(tile), 0.0)
    source = mixed + row * mixed_stride
    queries = source + (head // (H // G)) * K + key
    values = source + 2 * G * K + head * V + value
    decay_input, write_input = a + row * a_stride + head, b + row * b_stride + head
    rate, bias = tl.load(a_log + head), tl.load(dt_bias + head)
    for _ in range(start, stop):
        q = normalised(tl.load(queries).to(tl.float32)) * K**-0.5
        k = normalised(tl.load(queries + G * K).to(tl.float32))
        v = tl.load(values).to(tl.float32)
        change, wanted = tl.load(decay_input).to(tl.float32), tl.load(write_input).to(tl.float32)
        beta, log_gate = gates(change, wanted, rate, bias)
        held = held * tl.exp(log_gate)
        written = (v - tl.sum(held * k[:, None], axis=0)) * beta
        held = held + k[:, None] * written[None, :]
        o = tl.sum(held * q[:, None], axis=0)
        tl.store(target, o.to(tl.bfloat16))
        queries += mixed_stride
        values += mixed_stride
        decay_input += a_stride
        write_input += b_stride
        target += H * V
    tl.store(tile, held)


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
    heads, key_dim, value_dim = state.shape[-3:]
    require_power("gated_delta_rows", "K", key_dim)
    require_power("gated_delta_rows", "V", value_dim)
    columns = min(value_dim, _MOST_VALUES)
    rows = (mixed, mixed.stride(0), a, a.stride(0), b, b.stride(0), a_log, dt_bias)
    launch(
        gated_delta_rows_kernel,
        (len(slots), heads, value_dim // columns),
        *(*rows, state, q_start, slots, fresh, out),
        num_warps=1,
        fuses=True,
        H=heads,
        G=key_heads,
        K=key_dim,
        V=value_dim,
        VALUES=columns,
    )
