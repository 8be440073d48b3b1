"""The call into csrc/cpu/gated_delta_state."""

from __future__ import annotations

import torch
from torch import Tensor

from ocrquant.kernels.extension import extension

DTYPES = (torch.bfloat16, torch.float32)
"""What the compiled kernel takes q | k | v in."""


def gated_delta_state_native(
    mixed: Tensor, log_gate: Tensor, beta: Tensor, state: Tensor, key_heads: int
) -> Tensor:
    """See `gated_delta_state_reference`; bf16 or fp32 on a CPU, dense tensors."""
    native = extension()
    assert native is not None, "selection answers for it"
    batch, length, heads = log_gate.shape
    out = torch.empty(batch, length, heads, state.shape[-1], dtype=mixed.dtype)
    native.gated_delta_state(
        *(x.data_ptr() for x in (mixed, log_gate, beta, state, out)),
        mixed.dtype == torch.bfloat16,
        batch,
        length,
        key_heads,
        *state.shape[1:],
    )
    return out
