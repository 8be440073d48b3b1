"""The gated delta rule (arXiv 2412.06464) carried on from a state, in place, without gradients.

For sequences of one length with gates as the caller computed them, in bf16 or fp32: what a loaded Hugging
Face model needs. The engine's op, which takes rows of many requests and computes gates itself, is
`gated_delta_rows`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ocrquant.kernels.contract import Contract
from ocrquant.kernels.gated_delta_rows.native import HEAD_MULTIPLE
from ocrquant.kernels.gated_delta_state.native import DTYPES, gated_delta_state_native
from ocrquant.kernels.gated_delta_state.reference import EPSILON, gated_delta_state_reference
from ocrquant.kernels.selection import obstacle_to_native, use_native

__all__ = ["EPSILON", "gated_delta_state", "supported"]


def _fits(key_dim: int, value_dim: int) -> bool:
    return key_dim % HEAD_MULTIPLE == 0 and value_dim % HEAD_MULTIPLE == 0


def supported(device: torch.device, dtype: torch.dtype, key_dim: int, value_dim: int) -> bool:
    """Whether the compiled kernel would run: fp32 or bf16 on a CPU, head sizes that are multiples of 16."""
    return _fits(key_dim, value_dim) and not obstacle_to_native(device, dtype, DTYPES)


def gated_delta_state(mixed: Tensor, log_gate: Tensor, beta: Tensor, state: Tensor, key_heads: int) -> Tensor:
    """See `gated_delta_state_reference`; `state` must be contiguous, since it is changed in place.

    Raises:
        ShapeError: An argument is not as the reference says.
    """
    contract = Contract("gated_delta_state")
    contract.tensor("state", state, "B H K V", torch.float32)
    heads, key_dim, value_dim = state.shape[1:]
    contract.require(heads % key_heads == 0, "state", f"a multiple of {key_heads} heads", heads)
    mixed, log_gate, beta = mixed.contiguous(), log_gate.contiguous(), beta.float().contiguous()
    contract.tensor("log_gate", log_gate, "B T H", torch.float32)
    contract.tensor("beta", beta, "B T H", torch.float32)
    contract.tensor("mixed", mixed, f"B T {2 * key_heads * key_dim + heads * value_dim}", None)
    run = gated_delta_state_reference
    if _fits(key_dim, value_dim) and use_native("gated_delta_state", mixed, DTYPES):
        run = gated_delta_state_native
    return run(mixed, log_gate, beta, state, key_heads)
