"""Autograd wrappers of csrc/cpu/decoder_elementwise.cpp; anything but bf16 on a CPU goes to the reference."""

from __future__ import annotations

import ctypes
from typing import cast

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from ocrquant.kernels.decoder_elementwise import reference
from ocrquant.kernels.library import load

NAME = "decoder_elementwise"
TAPS = 4


def _call(function: str, *arguments: int | float | Tensor) -> None:
    handle = load(NAME).handle
    assert handle is not None, "the caller checks that the library loads"
    converted: list[ctypes.c_int64 | ctypes.c_float | ctypes.c_void_p] = []
    for argument in arguments:
        if isinstance(argument, Tensor):
            assert argument.is_contiguous(), f"{function} takes contiguous tensors"
            converted.append(ctypes.c_void_p(argument.data_ptr()))
        else:
            converted.append(
                ctypes.c_float(argument) if isinstance(argument, float) else ctypes.c_int64(argument)
            )
    getattr(handle, function)(*converted, ctypes.c_int(torch.get_num_threads()))


def supported(x: Tensor) -> bool:
    """Whether the compiled functions take `x`: bf16 on a CPU, and the library loads."""
    return x.device.type == "cpu" and x.dtype == torch.bfloat16 and load(NAME).handle is not None


class _UnitNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        x = x.contiguous()
        width = x.shape[-1]
        y, rstd = torch.empty_like(x), torch.empty(x.numel() // width)
        _call("unit_norm_forward", x.numel() // width, width, eps, x, weight, y, rstd)
        ctx.save_for_backward(x, weight, rstd)
        return y

    @staticmethod
    def backward(ctx: FunctionCtx, dy: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, rstd = ctx.saved_tensors  # type: ignore[attr-defined]
        dx, dw = torch.empty_like(x), torch.zeros_like(weight)
        _call("unit_norm_backward", rstd.numel(), x.shape[-1], dy.contiguous(), x, weight, rstd, dx, dw)
        return dx, dw, None


class _SwiGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, gate: Tensor, up: Tensor) -> Tensor:
        gate, up = gate.contiguous(), up.contiguous()
        y = torch.empty_like(up)
        _call("swiglu_forward", up.numel(), gate, up, y)
        ctx.save_for_backward(gate, up)
        return y

    @staticmethod
    def backward(ctx: FunctionCtx, dy: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors  # type: ignore[attr-defined]
        dgate, dup = torch.empty_like(gate), torch.empty_like(up)
        _call("swiglu_backward", up.numel(), dy.contiguous(), gate, up, dgate, dup)
        return dgate, dup


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
        sizes = (batch, length, channels, 2 * key_heads, key_dim, float(key_dim**-0.5))
        _call("short_conv_forward", *sizes, mixed, taps, q, k, v)
        ctx.save_for_backward(mixed, taps)
        ctx.sizes = sizes  # type: ignore[attr-defined]
        return q, k, v

    @staticmethod
    def backward(
        ctx: FunctionCtx, dq: Tensor, dk: Tensor, dv: Tensor
    ) -> tuple[Tensor, Tensor, None, None, None]:
        mixed, taps = ctx.saved_tensors  # type: ignore[attr-defined]
        dmixed, dtaps = torch.empty_like(mixed), torch.zeros_like(taps)
        gradients = (d.contiguous() for d in (dq, dk, dv))
        _call("short_conv_backward", *ctx.sizes, mixed, taps, *gradients, dmixed, dtaps)  # type: ignore[attr-defined]
        return dmixed, dtaps.t(), None, None, None


class _GatedNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, out: Tensor, z: Tensor, weight: Tensor, eps: float) -> Tensor:
        out, z = out.contiguous(), z.contiguous()
        dim = out.shape[-1]
        y, rstd = torch.empty_like(z), torch.empty(out.numel() // dim)
        _call("gated_norm_forward", out.numel() // dim, dim, eps, out, z, weight, y, rstd)
        ctx.save_for_backward(out, z, weight, rstd)
        return y

    @staticmethod
    def backward(ctx: FunctionCtx, dy: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        out, z, weight, rstd = ctx.saved_tensors  # type: ignore[attr-defined]
        d_out, dz, dw = torch.empty_like(out), torch.empty_like(z), torch.zeros_like(weight)
        _call(
            "gated_norm_backward",
            rstd.numel(),
            out.shape[-1],
            dy.contiguous(),
            out,
            z,
            weight,
            rstd,
            d_out,
            dz,
            dw,
        )
        return d_out, dz, dw, None


def unit_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `reference.unit_norm`; weight fp32."""
    if supported(x):
        return cast(Tensor, _UnitNorm.apply(x, weight, eps))  # type: ignore[no-untyped-call]
    return reference.unit_norm(x, weight, eps)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """See `reference.swiglu`."""
    if supported(up):
        return cast(Tensor, _SwiGlu.apply(gate, up))  # type: ignore[no-untyped-call]
    return reference.swiglu(gate, up)


def short_conv(
    mixed: Tensor, kernel: Tensor, key_heads: int, value_heads: int, key_dim: int
) -> tuple[Tensor, Tensor, Tensor]:
    """See `reference.short_conv`; the compiled form has four taps."""
    if supported(mixed) and kernel.shape[-1] == TAPS:
        results = _ShortConv.apply(mixed, kernel, key_heads, value_heads, key_dim)  # type: ignore[no-untyped-call]
        return cast(tuple[Tensor, Tensor, Tensor], results)
    return reference.short_conv(mixed, kernel, key_heads, value_heads, key_dim)


def gated_norm(out: Tensor, z: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `reference.gated_norm`."""
    if supported(z):
        return cast(Tensor, _GatedNorm.apply(out, z, weight, eps))  # type: ignore[no-untyped-call]
    return reference.gated_norm(out, z, weight, eps)
