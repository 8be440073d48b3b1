"""Attention over a paged cache in plain torch: one dense softmax a request.

Knows pages, heads and lengths; knows no model and no schedule.
"""

from __future__ import annotations

import torch
from torch import Tensor


def paged_attention_reference(
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
    """Softmax attention of the rows of each request over the keys that its pages hold.

    Row j of request i, which has m rows, sees keys ``0 .. kv_len[i] - m + j`` (its own key is the last of
    them), or all ``kv_len[i]`` keys when not causal; of these only those from ``first_key[i]`` on, where that
    is given. A row that sees no key gives zeros.

    Args:
        q: A[R, nq, hd]; query head h reads kv head ``h // (nq / nkv)``.
        k_cache: [pages, page_size, nkv, hd], A or uint8 E4M3 codes; key p of request i lies in page
            ``page_table[i, p // page_size]`` at ``p % page_size``. Nothing but keys of the request
            enters a result, so unused slots may hold anything.
        v_cache: The same.
        page_table: int32 [N, P].
        q_start: int32 [N + 1]; rows of request i are ``q_start[i] .. q_start[i + 1]``, counted from the first
            row of ``q``.
        kv_len: int32 [N], keys of the request, those of this step's rows included.
        scale: Multiplies the scores.
        out: A[R, nq * hd]; rows that belong to no request are left alone.
        causal: Whether a row sees later rows of its request.
        k_scale: Decode scale of a uint8 cache; 1 otherwise.
        v_scale: The same for values.
        first_key: int32 [N], 0 to ``kv_len``: keys of the request before it are not seen.

    Scores, softmax and sums are float32 (float64 for float64 queries); one rounding to A.
    """
    page_size, kv_heads, head_dim = k_cache.shape[1:]
    wide = torch.promote_types(q.dtype, torch.float32)
    firsts = [0] * len(kv_len) if first_key is None else first_key.tolist()
    for i, (begin, end, length, first) in enumerate(
        zip(q_start[:-1].tolist(), q_start[1:].tolist(), kv_len.tolist(), firsts, strict=True)
    ):
        if begin == end:
            continue
        position = torch.arange(first, length, device=q.device)
        slots = page_table[i].long()[position // page_size] * page_size + position % page_size
        keys, values = (
            _decoded(cache.view(-1, kv_heads, head_dim)[slots], one, wide).transpose(0, 1)
            for cache, one in ((k_cache, k_scale), (v_cache, v_scale))
        )
        rows = q[begin:end].to(wide).view(end - begin, kv_heads, -1, head_dim).permute(1, 2, 0, 3)
        scores = (rows @ keys.unsqueeze(1).mT) * scale
        if causal:
            last = length - (end - begin) + torch.arange(end - begin, device=q.device)
            scores = scores.masked_fill(position > last.unsqueeze(1), float("-inf"))
            # A softmax over nothing but -inf is NaN; a row without keys has only zero weights.
            scores = scores.masked_fill((last < first).unsqueeze(1), 0.0)
        weights = torch.softmax(scores, dim=-1)
        if causal:
            weights = weights.masked_fill((last < first).unsqueeze(1), 0.0)
        result = weights @ values.unsqueeze(1)
        out[begin:end] = result.permute(2, 0, 1, 3).reshape(end - begin, out.shape[1]).to(out.dtype)


def _decoded(x: Tensor, scale: float, wide: torch.dtype) -> Tensor:
    if x.dtype != torch.uint8:
        return x.to(wide)
    return x.view(torch.float8_e4m3fn).to(wide) * scale
