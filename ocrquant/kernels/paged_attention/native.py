"""The call into csrc/cpu/paged_attention."""

from __future__ import annotations

import torch
from torch import Tensor

from ocrquant.kernels.extension import extension


def paged_attention_native(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    page_table: Tensor,
    q_start: Tensor,
    kv_len: Tensor,
    scale: float,
    out: Tensor,
    causal: bool,
    k_scale: float,
    v_scale: float,
    first_key: Tensor | None,
) -> None:
    """See `paged_attention_reference`; bf16 on a CPU.

    A row's sums are taken in an order that depends on its own position only: over keys in blocks of 64 and
    spans of 512 counted from the first key that a request's rows see, wherever their pages lie.
    """
    native = extension()
    assert native is not None, "selection answers for it"
    native.paged_attention(
        *(x.data_ptr() for x in (q, k_cache, v_cache, page_table, q_start, kv_len)),
        0 if first_key is None else first_key.data_ptr(),
        out.data_ptr(),
        kv_len.shape[0],
        (q.shape[1], k_cache.shape[2], q.shape[2], k_cache.shape[1]),
        page_table.stride(0),
        scale,
        k_scale,
        v_scale,
        k_cache.dtype == torch.uint8,
        causal,
    )
