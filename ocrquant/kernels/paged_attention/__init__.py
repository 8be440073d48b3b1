"""Attention over a paged cache."""

from __future__ import annotations

import torch
from torch import Tensor

from ocrquant.kernels.contract import I32, Contract
from ocrquant.kernels.paged_attention.native import paged_attention_native
from ocrquant.kernels.paged_attention.reference import paged_attention_reference
from ocrquant.kernels.selection import implementation

__all__ = ["paged_attention"]


def paged_attention(
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
    """See `paged_attention_reference`.

    Raises:
        ShapeError: An argument is not as the reference says.
    """
    contract = Contract("paged_attention", starts=kv_len.shape[0] + 1)
    contract.tensor("q", q, "R nq hd", None)
    contract.tensor("k_cache", k_cache, "pages page_size nkv hd", (q.dtype, torch.uint8))
    contract.tensor("v_cache", v_cache, "pages page_size nkv hd", k_cache.dtype)
    contract.tensor("page_table", page_table, "N P", I32, strided=True)
    contract.tensor("kv_len", kv_len, "N", I32)
    contract.tensor("q_start", q_start, "starts", I32)
    if first_key is not None:
        contract.tensor("first_key", first_key, "N", I32)
    contract.tensor("out", out, "R width", q.dtype)
    heads, kv_heads, head_dim = q.shape[1], k_cache.shape[2], q.shape[2]
    contract.require(heads % kv_heads == 0, "q", f"a multiple of {kv_heads} heads", heads)
    contract.require(out.shape[1] == heads * head_dim, "out", f"width {heads * head_dim}", out.shape[1])
    is_plain = k_cache.dtype != torch.uint8
    contract.require(not is_plain or k_scale == v_scale == 1, "k_scale", "1 for this cache", k_scale)
    run = implementation("paged_attention", q, paged_attention_native, paged_attention_reference)
    run(q, k_cache, v_cache, page_table, q_start, kv_len, scale, out, causal, k_scale, v_scale, first_key)
