"""The calls into csrc/cpu/decoder_elementwise as functions of autograd; bf16 on a CPU.

Backward passes compute again what costs one pass over a row in cache, and keep only their inputs.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from ocrquant.kernels.extension import extension
from ocrquant.kernels.operand import Operand
from ocrquant.kernels.rms_norm.native import rms_norm_native

TAPS = 4
"""Taps of the compiled convolution."""


def _call(function: str, tensors: tuple[Tensor, ...], *sizes: int | float) -> None:
    """Runs a compiled function. Takes tensors rather than addresses, so that copies live through the call."""
    native = extension()
    assert native is not None, "selection answers for it"
    assert all(tensor.is_contiguous() for tensor in tensors), f"{function} takes dense tensors"
    getattr(native, function)(*(tensor.data_ptr() for tensor in tensors), *sizes)


def _saved(ctx: FunctionCtx) -> tuple[Tensor, ...]:
    return cast(Any, ctx).saved_tensors  # type: ignore[no-any-return]


class _UnitNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        x, weight = x.contiguous(), weight.contiguous()
        y = torch.empty_like(x)
        rows, result = x.view(-1, x.shape[-1]), y.view(-1, x.shape[-1])
        rms_norm_native(rows, weight, eps, Operand(plain=result), "unit")
        ctx.save_for_backward(x, weight)
        cast(Any, ctx).eps = eps
        return y

    @staticmethod
    def backward(ctx: FunctionCtx, d_y: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = _saved(ctx)
        d_x, d_weight = torch.empty_like(x), torch.empty_like(weight)
        width = x.shape[-1]
        sizes = (x.numel() // width, width, cast(Any, ctx).eps)
        _call("unit_norm_backward", (d_y.contiguous(), x, weight, d_x, d_weight), *sizes)
        return d_x, d_weight, None


class _Swiglu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, gate: Tensor, up: Tensor) -> Tensor:
        gate, up = gate.contiguous(), up.contiguous()
        y = torch.empty_like(up)
        _call("swiglu", (gate, up, y), up.numel())
        ctx.save_for_backward(gate, up)
        return y

    @staticmethod
    def backward(ctx: FunctionCtx, d_y: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = _saved(ctx)
        d_gate, d_up = torch.empty_like(gate), torch.empty_like(up)
        _call("swiglu_backward", (d_y.contiguous(), gate, up, d_gate, d_up), up.numel())
        return d_gate, d_up


class _ShortConv(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionCtx, mixed: Tensor, kernel: Tensor, key_heads: int, value_heads: int, key_dim: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        mixed, taps = mixed.contiguous(), kernel.t().contiguous()
        batch, length, channels = mixed.shape
        q = torch.empty(batch, length, key_heads, key_dim)
        value_dim = (channels - 2 * key_heads * key_dim) // value_heads
        k, v = torch.empty_like(q), torch.empty(batch, length, value_heads, value_dim)
        sizes = (batch, length, channels, key_heads, key_dim, key_dim**-0.5)
        _call("short_conv", (mixed, taps, q, k, v), *sizes)
        ctx.save_for_backward(mixed, taps)
        cast(Any, ctx).sizes = sizes
        return q, k, v

    @staticmethod
    def backward(
        ctx: FunctionCtx, d_q: Tensor, d_k: Tensor, d_v: Tensor
    ) -> tuple[Tensor, Tensor, None, None, None]:
        mixed, taps = _saved(ctx)
        d_mixed, d_taps = torch.empty_like(mixed), torch.empty_like(taps)
        gradients = [d.contiguous() for d in (d_q, d_k, d_v)]
        _call("short_conv_backward", (mixed, taps, *gradients, d_mixed, d_taps), *cast(Any, ctx).sizes)
        return d_mixed, d_taps.t(), None, None, None


class _GatedNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, out: Tensor, z: Tensor, weight: Tensor, eps: float) -> Tensor:
        out, z, weight = out.contiguous(), z.contiguous(), weight.contiguous()
        y = torch.empty_like(z)
        sizes = (out.numel() // out.shape[-1], out.shape[-1], eps)
        _call("gated_norm", (out, z, weight, y), *sizes)
        ctx.save_for_backward(out, z, weight)
        cast(Any, ctx).sizes = sizes
        return y

    @staticmethod
    def backward(ctx: FunctionCtx, d_y: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        out, z, weight = _saved(ctx)
        d_out, d_z, d_weight = torch.empty_like(out), torch.empty_like(z), torch.empty_like(weight)
        tensors = (out, z, weight, d_y.contiguous(), d_out, d_z, d_weight)
        _call("gated_norm_backward", tensors, *cast(Any, ctx).sizes)
        return d_out, d_z, d_weight, None


def unit_norm_native(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `reference.unit_norm`."""
    return cast(Tensor, _UnitNorm.apply(x, weight.float(), eps))  # type: ignore[no-untyped-call]


def swiglu_native(gate: Tensor, up: Tensor) -> Tensor:
    """See `reference.swiglu`."""
    return cast(Tensor, _Swiglu.apply(gate, up))  # type: ignore[no-untyped-call]


def short_conv_native(
    mixed: Tensor, kernel: Tensor, key_heads: int, value_heads: int, key_dim: int
) -> tuple[Tensor, Tensor, Tensor]:
    """See `reference.short_conv`; four taps."""
    results = _ShortConv.apply(mixed, kernel, key_heads, value_heads, key_dim)  # type: ignore[no-untyped-call]
    return cast(tuple[Tensor, Tensor, Tensor], results)


def gated_norm_native(out: Tensor, z: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `reference.gated_norm`."""
    return cast(Tensor, _GatedNorm.apply(out.float(), z, weight.float(), eps))  # type: ignore[no-untyped-call]
