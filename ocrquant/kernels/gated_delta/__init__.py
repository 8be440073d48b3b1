"""The gated delta rule over whole sequences (arXiv 2412.06464), differentiable."""

from __future__ import annotations

import torch
from torch import Tensor

from ocrquant.kernels.contract import Contract
from ocrquant.kernels.gated_delta.native import gated_delta_rule_native
from ocrquant.kernels.gated_delta.reference import chunked_gated_delta_rule
from ocrquant.kernels.gated_delta_rows.native import HEAD_MULTIPLE
from ocrquant.kernels.selection import use_native

__all__ = ["gated_delta_rule"]


def gated_delta_rule(q: Tensor, k: Tensor, v: Tensor, log_gate: Tensor, beta: Tensor) -> Tensor:
    """Gated delta rule without a carried-in state, differentiable.

    The compiled recurrence runs for fp32 on a CPU and head sizes that are multiples of 16, the chunked
    reference elsewhere.

    Args:
        q: [B, T, G, K], normalised and scaled; fp32 or fp64, as all others.
        k: [B, T, G, K], normalised.
        v: [B, T, H, V]; H is a multiple of G, and value head h reads key head h // (H / G).
        log_gate: [B, T, H], at most 0.
        beta: [B, T, H].

    Returns:
        [B, T, H, V].

    Raises:
        ShapeError: An argument is not as above.
    """
    contract = Contract("gated_delta")
    q, k, v, log_gate, beta = (x.contiguous() for x in (q, k, v, log_gate, beta))
    for name, tensor, shape in (("q", q, "B T G K"), ("k", k, "B T G K"), ("v", v, "B T H V")):
        contract.tensor(name, tensor, shape, q.dtype)
    for name, tensor in (("log_gate", log_gate), ("beta", beta)):
        contract.tensor(name, tensor, "B T H", q.dtype)
    contract.require(v.shape[2] % q.shape[2] == 0, "v", f"a multiple of {q.shape[2]} heads", v.shape[2])
    fits = q.shape[-1] % HEAD_MULTIPLE == 0 and v.shape[-1] % HEAD_MULTIPLE == 0
    is_native = fits and use_native("gated_delta", q, (torch.float32,))
    run = gated_delta_rule_native if is_native else chunked_gated_delta_rule
    return run(q, k, v, log_gate, beta)
