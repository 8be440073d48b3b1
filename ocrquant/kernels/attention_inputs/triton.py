"""``attention_inputs`` in Triton: a program a row and head of q, k or v."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ocrquant.kernels.triton_common.launch import launch, next_power
from ocrquant.kernels.triton_common.numerics import e4m3_codes, reciprocal_root, rounded


@triton.jit
def _store(at, value, scale, inside, IS_CODED: tl.constexpr):
    if IS_CODED:
        tl.store(at, e4m3_codes(tl.div_rn(value, scale)), mask=inside)
    else:
        tl.store(at, value.to(tl.bfloat16), mask=inside)


@triton.jit
def _head(
    source,
    norm,
    eps,
    cos,
    sin,
    target,
    scale,
    width,
    half,
    TURNS: tl.constexpr,
    IS_CODED: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
):
    """One head: norm, rotation of its first ``2 half`` elements, store."""
    pair, tail = tl.arange(0, HALF), tl.arange(0, REST)
    in_pair, at_tail = pair < half, 2 * half + tail
    low = tl.load(source + pair, mask=in_pair, other=0.0).to(tl.float32)
    high = tl.load(source + half + pair, mask=in_pair, other=0.0).to(tl.float32)
    rest = tl.load(source + at_tail, mask=at_tail < width, other=0.0).to(tl.float32)
    if norm is not None:
        squares = tl.sum(low * low, axis=0) + tl.sum(high * high, axis=0) + tl.sum(rest * rest, axis=0)
        root = reciprocal_root(tl.div_rn(squares, width.to(tl.float32)) + eps)
        low = rounded(low * root * (1.0 + tl.load(norm + pair, mask=in_pair, other=0.0)))
        high = rounded(high * root * (1.0 + tl.load(norm + half + pair, mask=in_pair, other=0.0)))
        rest = rounded(rest * root * (1.0 + tl.load(norm + at_tail, mask=at_tail < width, other=0.0)))
    if TURNS:
        c = tl.load(cos + pair, mask=in_pair, other=0.0)
        s = tl.load(sin + pair, mask=in_pair, other=0.0)
        turned = rounded(rounded(low * c) + rounded(-high * s))
        high = rounded(rounded(high * c) + rounded(low * s))
        low = turned
    _store(target + pair, low, scale, in_pair, IS_CODED)
    _store(target + half + pair, high, scale, in_pair, IS_CODED)
    _store(target + at_tail, rest, scale, at_tail < width, IS_CODED)


@triton.jit
def attention_inputs_kernel(
    q,
    q_row,
    q_head,
    k,
    k_row,
    k_head,
    v,
    v_row,
    v_head,
    q_norm,
    k_norm,
    eps,
    cos,
    sin,
    slot_mapping,
    out_q,
    k_cache,
    v_cache,
    k_scale,
    v_scale,
    heads,
    kv_heads,
    width,
    half,
    IS_CODED: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
):
    """Program (row, head of q, k, v one after another)."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    turn = row * half
    if head < heads:
        source = q + row * q_row + head * q_head
        target = out_q + (row * heads + head) * width
        _head(source, q_norm, eps, cos + turn, sin + turn, target, 1.0, width, half, True, False, HALF, REST)
        return
    slot = tl.load(slot_mapping + row).to(tl.int64)
    if slot < 0:
        return
    own = (head - heads) % kv_heads
    place = (slot * kv_heads + own) * width
    if head < heads + kv_heads:
        source = k + row * k_row + own * k_head
        _head(
            source,
            k_norm,
            eps,
            cos + turn,
            sin + turn,
            k_cache + place,
            k_scale,
            width,
            half,
            True,
            IS_CODED,
            HALF,
            REST,
        )
    else:
        source = v + row * v_row + own * v_head
        _head(source, None, eps, cos, sin, v_cache + place, v_scale, width, half, False, IS_CODED, HALF, REST)


def attention_inputs_triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
    cos: Tensor,
    sin: Tensor,
    slot_mapping: Tensor,
    out_q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> None:
    """See `attention_inputs_reference`; bf16 on a GPU."""
    (rows, heads, width), kv_heads, half = q.shape, k.shape[1], cos.shape[1]
    launch(
        attention_inputs_kernel,
        (rows, heads + 2 * kv_heads),
        *(part for x in (q, k, v) for part in (x, x.stride(0), x.stride(1))),
        *(q_norm, k_norm, eps, cos, sin, slot_mapping, out_q, k_cache, v_cache, k_scale, v_scale),
        *(heads, kv_heads, width, half),
        num_warps=1,
        IS_CODED=k_cache.element_size() == 1,
        HALF=next_power(max(half, 1)),
        REST=next_power(max(width - 2 * half, 1)),
    )
