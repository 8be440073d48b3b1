"""What lies between the q/k/v projection and attention, in plain torch: norm, rotary, cache writes.

Knows heads, tables and slots of a paged cache; knows no request and no layer.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ocrquant.formats import fp8


def attention_inputs_reference(
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
    """Normalises and rotates queries and keys; writes queries to ``out_q``, keys and values to the cache.

    Args:
        q: A[R, nq, hd], any row and head strides (a head may be followed by its gate).
        k: A[R, nkv, hd], any row and head strides.
        v: A[R, nkv, hd], any row and head strides.
        q_norm: float32 [hd], or None where the model has no such norm:
            ``round_A(x * rsqrt(mean(x^2) + eps) * (1 + w))``, in float32 with one rounding.
        k_norm: The same for keys; both or none.
        eps: Of both norms.
        cos: [R, d/2] with values of A (``rope_table``); the first d of hd are rotated, the rest passes.
        sin: The same.
        slot_mapping: int32 [R], ``page * page_size + offset``; -1 writes nothing.
        out_q: A[R, nq, hd], contiguous; overwritten.
        k_cache: [pages, page_size, nkv, hd], A or uint8 E4M3 codes of ``x / k_scale``; only the given slots
            change.
        v_cache: The same with ``v_scale``.
        k_scale: Decode scale of a uint8 cache; 1 otherwise.
        v_scale: The same for values.

    Rotary on A: the two products and their sum are each rounded to A.
    """
    out_q.copy_(_rotated(_normed(q, q_norm, eps), cos, sin))
    written = slot_mapping >= 0
    slots = slot_mapping[written].long()
    keys = _rotated(_normed(k, k_norm, eps), cos, sin)
    for rows, cache, scale in ((keys, k_cache, k_scale), (v, v_cache, v_scale)):
        cache.view(-1, *cache.shape[2:])[slots] = _stored(rows[written], cache.dtype, scale)


def _normed(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    if weight is None:
        return x
    wide = torch.promote_types(x.dtype, torch.float32)
    y = x.to(wide)
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)
    return (y * (1.0 + weight.to(wide))).to(x.dtype)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = cos.shape[-1]
    c, s = cos.to(x.dtype).unsqueeze(1), sin.to(x.dtype).unsqueeze(1)
    lo, hi, rest = x.split((half, half, x.shape[-1] - 2 * half), dim=-1)
    return torch.cat((lo * c + -hi * s, hi * c + lo * s, rest), dim=-1)


def _stored(x: Tensor, dtype: torch.dtype, scale: float) -> Tensor:
    if dtype != torch.uint8:
        return x
    return fp8.encode(x, torch.tensor([scale], device=x.device)).view(torch.uint8)
