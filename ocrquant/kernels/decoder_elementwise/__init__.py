"""What lies between the matrix products of a Gated DeltaNet decoder, differentiable, for training.

The runtime has ops of its own for these places, which write operands and round where the model does in
inference; these compute in fp32 and round once.
"""

from __future__ import annotations

from torch import Tensor

from ocrquant.kernels.contract import Contract
from ocrquant.kernels.decoder_elementwise import native, reference
from ocrquant.kernels.selection import use_native

__all__ = ["gated_norm", "short_conv", "swiglu", "unit_norm"]


def unit_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `reference.unit_norm`.

    Raises:
        ShapeError: The weight is not as wide as x.
    """
    contract = Contract("unit_norm", w=x.shape[-1])
    contract.tensor("weight", weight, "w", None, strided=True)
    run = native.unit_norm_native if use_native("unit_norm", x) else reference.unit_norm
    return run(x, weight, eps)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """See `reference.swiglu`.

    Raises:
        ShapeError: The two differ in shape or dtype.
    """
    contract = Contract("swiglu")
    contract.require(gate.shape == up.shape, "up", list(gate.shape), list(up.shape))
    contract.require(gate.dtype == up.dtype, "up", gate.dtype, up.dtype)
    run = native.swiglu_native if use_native("swiglu", up) else reference.swiglu
    return run(gate, up)


def short_conv(
    mixed: Tensor, kernel: Tensor, key_heads: int, value_heads: int, key_dim: int
) -> tuple[Tensor, Tensor, Tensor]:
    """See `reference.short_conv`; other numbers of taps than four run the reference.

    Raises:
        ShapeError: The channels are not those of q | k | v, or the kernel has others.
    """
    contract = Contract("short_conv", C=mixed.shape[-1])
    rest = mixed.shape[-1] - 2 * key_heads * key_dim
    fits = rest > 0 and rest % value_heads == 0
    contract.require(fits, "mixed", f"q and k of {key_heads} x {key_dim}, then v", mixed.shape[-1])
    contract.require(mixed.ndim == 3, "mixed", "shape [B, T, C]", list(mixed.shape))
    contract.tensor("kernel", kernel, "C taps", None, strided=True)
    has_taps = kernel.shape[-1] == native.TAPS
    run = native.short_conv_native if has_taps and use_native("short_conv", mixed) else reference.short_conv
    return run(mixed, kernel.float(), key_heads, value_heads, key_dim)


def gated_norm(out: Tensor, z: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `reference.gated_norm`.

    Raises:
        ShapeError: z has other elements than out, or the weight is not as wide as a head.
    """
    contract = Contract("gated_norm", V=out.shape[-1])
    contract.tensor("weight", weight, "V", None, strided=True)
    contract.require(z.numel() == out.numel(), "z", f"{out.numel()} elements", z.numel())
    run = native.gated_norm_native if use_native("gated_norm", z) else reference.gated_norm
    return run(out, z, weight, eps)
