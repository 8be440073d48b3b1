"""Wrapper of csrc/cpu/gated_delta_state.cpp; falls back to the reference."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from ocrquant.kernels.gated_delta_state.reference import EPSILON, gated_delta_state_reference
from ocrquant.kernels.library import load

HEAD_DIMS = (32, 64, 128)
NAME = "gated_delta_state"
FUNCTIONS = {torch.float32: f"{NAME}_fp32", torch.bfloat16: f"{NAME}_bf16"}


def supported(device: torch.device, dtype: torch.dtype, key_dim: int, value_dim: int) -> bool:
    """Whether the compiled kernel applies: fp32 or bf16 on a CPU, equal head sizes of 32, 64 or 128."""
    return (
        device.type == "cpu"
        and dtype in FUNCTIONS
        and key_dim == value_dim
        and key_dim in HEAD_DIMS
        and load(NAME).handle is not None
    )


def gated_delta_state(mixed: Tensor, log_gate: Tensor, beta: Tensor, state: Tensor, key_heads: int) -> Tensor:
    """See `gated_delta_state_reference`; `state` must be contiguous, since it is changed in place."""
    assert state.is_contiguous(), "the state is changed in place"
    assert state.dtype == log_gate.dtype == torch.float32
    batch, length, _ = mixed.shape
    heads, key_dim, value_dim = state.shape[1:]
    if not supported(mixed.device, mixed.dtype, key_dim, value_dim):
        return gated_delta_state_reference(mixed, log_gate, beta, state, key_heads)
    mixed, log_gate, beta = mixed.contiguous(), log_gate.contiguous(), beta.float().contiguous()
    assert log_gate.shape == beta.shape == (batch, length, heads)
    assert mixed.shape[-1] == (2 * key_heads + heads) * key_dim
    out = torch.empty(batch, length, heads, value_dim, dtype=mixed.dtype)
    sizes = [ctypes.c_int64(value) for value in (batch, length, key_heads, heads, key_dim)]
    pointers = [ctypes.c_void_p(x.data_ptr()) for x in (mixed, log_gate, beta, state, out)]
    function = getattr(load(NAME).handle, FUNCTIONS[mixed.dtype])
    status = function(*sizes, ctypes.c_float(EPSILON), *pointers, ctypes.c_int(torch.get_num_threads()))
    assert status == 0, f"head size {key_dim} is not compiled"
    return out
