"""``paged_attention`` in Triton: an online softmax over a part of a request's keys, then the parts together.

A program takes up to `ROWS` rows of one request, all query heads of one kv head, and a part of the keys. How
many parts there are follows from sizes alone, so that a captured launch fits every length. Scores and sums
are float32; weights are rounded to bf16 before they multiply values, as such kernels for matrix units do.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import knobs

from ocrquant.kernels.triton_common.launch import launch, next_power, require_power

_KEYS = 32
_LEAST_PART = 256
"""Keys that are worth a program."""
_PROGRAMS = 264
"""Two for each multiprocessor of an H200."""
_LEAST_TILE = 16


@triton.jit
def _product(left, right, IS_WIDE: tl.constexpr):
    """Float32 sums of products of bf16 tiles; the interpreter would multiply their bits."""
    if IS_WIDE:
        return tl.dot(left.to(tl.float32), right.to(tl.float32), input_precision="ieee")
    return tl.dot(left, right)


@triton.jit
def _request_of(tile, q_start, requests, ROWS: tl.constexpr, REQUESTS: tl.constexpr):
    """The request of a tile of rows, and the first row of the tile in it; beyond the last one: requests."""
    number = tl.arange(0, REQUESTS)
    is_one = number < requests
    begin = tl.load(q_start + number, mask=is_one, other=0)
    end = tl.load(q_start + number + 1, mask=is_one, other=0)
    tiles = tl.cdiv(end - begin, ROWS)
    before = tl.cumsum(tiles, axis=0) - tiles
    request = tl.sum((is_one & (before + tiles <= tile)).to(tl.int32), axis=0)
    first = tl.sum(tl.where(number == request, before, 0), axis=0)
    return request, (tile - first) * ROWS


@triton.jit
def _load(cache, at, is_there, IS_CODED: tl.constexpr):
    """A tile of keys or values in bf16; codes are numbers of bf16, their scale multiplies what is summed."""
    if IS_CODED:
        codes = tl.load(cache + at, mask=is_there, other=0)
        tile = codes.to(tl.float8e4nv, bitcast=True).to(tl.float32).to(tl.bfloat16)
    else:
        tile = tl.load(cache + at, mask=is_there, other=0.0)
    return tile


@triton.jit
def _add_keys(
    top,
    weight,
    total,
    queries,
    last,
    base,
    stop,
    caches,
    where,
    IS_CODED: tl.constexpr,
    IS_WIDE: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """One step of the online softmax: the largest score so far, the sum of weights, the weighted sum."""
    table, kv_head, kv_heads, page_size, scale = where
    key, columns = base + tl.arange(0, KEYS), tl.arange(0, WIDTH)
    is_key = key < stop
    page = tl.load(table + key // page_size, mask=is_key, other=0)
    place = ((page.to(tl.int64) * page_size + key % page_size) * kv_heads + kv_head) * WIDTH
    keys = _load(caches[0], place[None, :] + columns[:, None], is_key[None, :], IS_CODED)
    values = _load(caches[1], place[:, None] + columns[None, :], is_key[:, None], IS_CODED)
    scores = _product(queries, keys, IS_WIDE) * scale
    scores = tl.where(is_key[None, :] & (key[None, :] <= last[:, None]), scores, float("-inf"))
    higher = tl.maximum(top, tl.max(scores, axis=1))
    # A row that has seen no key yet keeps -inf; its differences would be NaN.
    against = tl.where(higher == float("-inf"), 0.0, higher)
    shrink = tl.exp(top - against)
    share = tl.exp(scores - against[:, None])
    weight = weight * shrink + tl.sum(share, axis=1)
    total = total * shrink[:, None] + _product(share.to(tl.bfloat16), values, IS_WIDE)
    return higher, weight, total


@triton.jit
def attend_kernel(
    q,
    caches,
    table,
    table_stride,
    page_size,
    requests,
    scales,
    results,
    heads,
    kv_heads,
    IS_CAUSAL: tl.constexpr,
    IS_CODED: tl.constexpr,
    IS_WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    GROUP: tl.constexpr,
    OWN: tl.constexpr,
    WIDTH: tl.constexpr,
    KEYS: tl.constexpr,
    PARTS: tl.constexpr,
    REQUESTS: tl.constexpr,
):
    """Program (tile of rows, kv head, part of the keys)."""
    q_start, kv_len, first_key, count = requests
    request, first_row = _request_of(tl.program_id(0), q_start, count, ROWS, REQUESTS)
    if request >= count:
        return
    kv_head, part = tl.program_id(1), tl.program_id(2)
    begin = tl.load(q_start + request)
    rows = tl.load(q_start + request + 1) - begin
    length = tl.load(kv_len + request)
    low = 0
    if first_key is not None:
        low = tl.load(first_key + request)
    line, columns = tl.arange(0, ROWS * GROUP), tl.arange(0, WIDTH)
    row, member = first_row + line // GROUP, line % GROUP
    is_row = (row < rows) & (member < OWN)
    last = length - 1 + tl.zeros_like(row)
    if IS_CAUSAL:
        last = length - rows + row
    head_row = (begin + row).to(tl.int64) * heads + kv_head * OWN + member
    at_rows = head_row[:, None] * WIDTH + columns[None, :]
    queries = tl.load(q + at_rows, mask=is_row[:, None], other=0.0)
    each = tl.cdiv(tl.cdiv(length - low, PARTS), KEYS) * KEYS
    start = low + part * each
    stop = tl.minimum(start + each, length)
    top = tl.full([ROWS * GROUP], float("-inf"), tl.float32)
    weight = tl.zeros([ROWS * GROUP], tl.float32)
    total = tl.zeros([ROWS * GROUP, WIDTH], tl.float32)
    own, scale = table + request * table_stride, scales[0] * scales[1]
    for base in range(start, stop, KEYS):
        where = (own, kv_head, kv_heads, page_size, scale)
        top, weight, total = _add_keys(
            top, weight, total, queries, last, base, stop, caches, where, IS_CODED, IS_WIDE, KEYS, WIDTH
        )
    if PARTS == 1:
        result = tl.div_rn(total * scales[2], tl.where(weight == 0.0, 1.0, weight)[:, None])
        tl.store(results[0] + at_rows, result.to(tl.bfloat16), mask=is_row[:, None])
    else:
        cell = head_row * PARTS + part
        tl.store(results[1] + cell[:, None] * WIDTH + columns[None, :], total, mask=is_row[:, None])
        tl.store(results[2] + cell, top, mask=is_row)
        tl.store(results[3] + cell, weight, mask=is_row)


@triton.jit
def join_kernel(
    sums,
    tops,
    weights,
    q_start,
    requests,
    v_scale,
    out,
    heads,
    WIDTH: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Program (row, head): the parts of its keys together."""
    row, head = tl.program_id(0), tl.program_id(1)
    if row >= tl.load(q_start + requests):
        return
    cell = (row.to(tl.int64) * heads + head) * PARTS + tl.arange(0, PARTS)
    columns = tl.arange(0, WIDTH)
    top, weight = tl.load(tops + cell), tl.load(weights + cell)
    highest = tl.max(top, axis=0)
    share = tl.exp(top - tl.where(highest == float("-inf"), 0.0, highest))
    part = tl.load(sums + cell[:, None] * WIDTH + columns[None, :])
    total = tl.sum(part * share[:, None], axis=0) * v_scale
    whole = tl.sum(weight * share, axis=0)
    result = tl.div_rn(total, tl.where(whole == 0.0, 1.0, whole))
    place = (row.to(tl.int64) * heads + head) * WIDTH
    tl.store(out + place + columns, result.to(tl.bfloat16))


def num_parts(tiles: int, kv_heads: int, most_keys: int) -> int:
    """Parts that the keys go into: enough programs to fill a GPU, and none too small; a power of two."""
    wanted = -(-_PROGRAMS // max(tiles * kv_heads, 1))
    return min(next_power(wanted), max(1, next_power(most_keys // _LEAST_PART + 1) // 2), 32)


def paged_attention_triton(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    page_table: Tensor,
    q_start: Tensor,
    kv_len: Tensor,
    scale: float,
    out: Tensor,
    causal: bool = True,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    first_key: Tensor | None = None,
) -> None:
    """See `paged_attention_reference`; bf16 on a GPU, heads whose width is a power of two."""
    (rows, heads, width), (_, page_size, kv_heads, _) = q.shape, k_cache.shape
    require_power("paged_attention", "width of a head", width)
    requests, own = len(kv_len), heads // kv_heads
    if not rows or not requests:
        return
    group = next_power(own)
    tile = max(_LEAST_TILE // group, 16 if rows > requests else 1)
    tiles = min(rows, -(-rows // tile) + requests)
    parts = num_parts(tiles, kv_heads, page_table.shape[1] * page_size)
    shape = (rows, heads, parts) if parts > 1 else (0,)
    tops, weights = (torch.empty(shape, dtype=torch.float32, device=q.device) for _ in range(2))
    sums = torch.empty((*shape, width), dtype=torch.float32, device=q.device)
    launch(
        attend_kernel,
        (tiles, kv_heads, parts),
        *(q, (k_cache, v_cache), page_table, page_table.stride(0), page_size),
        (q_start, kv_len, first_key, requests),
        (scale, k_scale, v_scale),
        *((out, sums, tops, weights), heads, kv_heads),
        num_warps=8 if tile * group * width >= 1 << 13 else 4,
        fuses=True,
        IS_CAUSAL=causal,
        IS_CODED=k_cache.element_size() == 1,
        IS_WIDE=knobs.runtime.interpret,
        ROWS=tile,
        GROUP=group,
        OWN=own,
        WIDTH=width,
        KEYS=_KEYS,
        PARTS=parts,
        REQUESTS=next_power(requests),
    )
    if parts > 1:
        launch(
            join_kernel,
            (rows, heads),
            *(sums, tops, weights, q_start, requests, v_scale, out, heads),
            fuses=True,
            WIDTH=width,
            PARTS=parts,
        )
