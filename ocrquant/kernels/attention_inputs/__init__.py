"""Head norms, rotary embedding and cache writes: what lies between the q/k/v projection and attention."""

from __future__ import annotations

import torch
from torch import Tensor

from ocrquant.kernels.attention_inputs.native import attention_inputs_native
from ocrquant.kernels.attention_inputs.reference import attention_inputs_reference
from ocrquant.kernels.contract import I32, Contract
from ocrquant.kernels.selection import implementation

__all__ = ["attention_inputs"]

_WIDE = (torch.float32, torch.float64)


def attention_inputs(
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
    """See `attention_inputs_reference`.

    Raises:
        ShapeError: An argument is not as the reference says.
    """
    contract = Contract("attention_inputs")
    contract.tensor("q", q, "R nq hd", None, strided=True)
    contract.tensor("k", k, "R nkv hd", q.dtype, strided=True)
    contract.tensor("v", v, "R nkv hd", q.dtype, strided=True)
    contract.require((q_norm is None) == (k_norm is None), "k_norm", "both norms or none", "one of them")
    for name, norm in (("q_norm", q_norm), ("k_norm", k_norm)):
        if norm is not None:
            contract.tensor(name, norm, "hd", torch.float32)
    contract.tensor("cos", cos, "R half", _WIDE)
    contract.tensor("sin", sin, "R half", cos.dtype)
    contract.require(2 * cos.shape[1] <= q.shape[2], "cos", f"at most {q.shape[2]} / 2", cos.shape[1])
    contract.tensor("slot_mapping", slot_mapping, "R", I32)
    contract.tensor("out_q", out_q, "R nq hd", q.dtype)
    contract.tensor("k_cache", k_cache, "pages page_size nkv hd", (q.dtype, torch.uint8))
    contract.tensor("v_cache", v_cache, "pages page_size nkv hd", k_cache.dtype)
    is_plain = k_cache.dtype != torch.uint8
    contract.require(not is_plain or k_scale == v_scale == 1, "k_scale", "1 for this cache", k_scale)
    run = implementation("attention_inputs", q, attention_inputs_native, attention_inputs_reference)
    run(q, k, v, q_norm, k_norm, eps, cos, sin, slot_mapping, out_q, k_cache, v_cache, k_scale, v_scale)
