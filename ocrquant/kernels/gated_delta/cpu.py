"""Autograd wrapper of csrc/cpu/gated_delta_sequence.cpp; falls back to the chunked reference."""

from __future__ import annotations

import ctypes
from typing import cast

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from ocrquant.kernels.gated_delta.reference import chunked_gated_delta_rule
from ocrquant.kernels.library import load

HEAD_DIMS = (32, 64, 128)
NAME = "gated_delta_sequence"


def _call(function: str, shape: tuple[int, ...], tensors: tuple[Tensor, ...]) -> None:
    handle = load(NAME).handle
    assert handle is not None, "the caller checks that the library loads"
    numbers = [ctypes.c_int64(value) for value in shape]
    pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]
    status = getattr(handle, f"{NAME}_{function}")(*numbers, *pointers, ctypes.c_int(torch.get_num_threads()))
    assert status == 0, f"head size {shape[-1]} is not compiled"


class _GatedDeltaSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, q: Tensor, k: Tensor, v: Tensor, log_gate: Tensor, beta: Tensor) -> Tensor:
        inputs = tuple(x.contiguous() for x in (q, k, v, log_gate, beta))
        out = torch.empty_like(inputs[2])
        shape = (*inputs[0].shape[:3], v.shape[2], v.shape[3])
        _call("forward", shape, (*inputs, out))
        ctx.save_for_backward(*inputs)
        return out

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, ...]:
        inputs: tuple[Tensor, ...] = ctx.saved_tensors  # type: ignore[attr-defined]
        q, k, v, log_gate, beta = inputs
        gradients = (
            torch.zeros_like(q),
            torch.zeros_like(k),
            *(torch.empty_like(x) for x in (v, log_gate, beta)),
        )
        shape = (*q.shape[:3], v.shape[2], v.shape[3])
        _call("backward", shape, (*inputs, gradient.contiguous(), *gradients))
        return gradients


def supported(q: Tensor, v: Tensor) -> bool:
    """Whether the compiled kernel takes these: fp32 on a CPU, equal head sizes of 32, 64 or 128."""
    return (
        q.device.type == "cpu"
        and q.dtype == v.dtype == torch.float32
        and q.shape[-1] == v.shape[-1]
        and v.shape[-1] in HEAD_DIMS
        and load(NAME).handle is not None
    )


def gated_delta_rule(q: Tensor, k: Tensor, v: Tensor, log_gate: Tensor, beta: Tensor) -> Tensor:
    """Gated delta rule without a carried-in state, differentiable.

    q, k [B, T, G, K] (normalised, q scaled), v [B, T, H, V], log_gate <= 0 and beta [B, T, H], all fp32;
    H is a multiple of G and value head h reads key head h // (H / G). Returns [B, T, H, V].
    """
    if supported(q, v):
        return cast(Tensor, _GatedDeltaSequence.apply(q, k, v, log_gate, beta))  # type: ignore[no-untyped-call]
    return chunked_gated_delta_rule(q, k, v, log_gate, beta)
