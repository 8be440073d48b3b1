"""Plain torch definitions of what lies between the matrix products of a Gated DeltaNet decoder.

Each computes in fp32 and rounds once, to the dtype of its model-side tensor.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def unit_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Zero-centred RMSNorm over the last dimension.

    X rsqrt(mean x^2 + eps) (1 + weight), in the dtype of x.
    """
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * (1.0 + weight.float())).to(
        x.dtype
    )


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """SiLU(gate) * up, in the dtype of up."""
    return (F.silu(gate.float()) * up.float()).to(up.dtype)


def short_conv(
    mixed: Tensor, kernel: Tensor, key_heads: int, value_heads: int, key_dim: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Causal depthwise convolution, SiLU, split and l2 norm.

    mixed [B, T, 2 G K + H V]; kernel fp32 [C, taps]. Returns fp32 q (scaled by K^-0.5) and k [B, T, G, K], v
    [B, T, H, V].
    """
    taps, length = kernel.shape[-1], mixed.shape[1]
    padded = F.pad(mixed, (0, 0, taps - 1, 0))
    wide = torch.zeros(mixed.shape, dtype=torch.float32, device=mixed.device)
    for i in range(taps):
        wide = wide + padded[:, i : i + length].float() * kernel[:, i]
    wide = F.silu(wide)
    width = key_heads * key_dim
    q, k, v = wide.split([width, width, wide.shape[-1] - 2 * width], dim=-1)
    q, k = q.unflatten(-1, (key_heads, key_dim)), k.unflatten(-1, (key_heads, key_dim))
    q = q * (torch.rsqrt(q.square().sum(-1, keepdim=True) + 1e-6) * key_dim**-0.5)
    k = k * torch.rsqrt(k.square().sum(-1, keepdim=True) + 1e-6)
    return q, k, v.unflatten(-1, (value_heads, -1)).contiguous()


def gated_norm(out: Tensor, z: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm over each head of out [B, T, H, V] (fp32), times weight [V] and SiLU of z [B, T, H V].

    Like z.
    """
    scaled = out * torch.rsqrt(out.square().mean(-1, keepdim=True) + eps) * weight
    return (scaled.flatten(-2) * F.silu(z.float())).to(z.dtype)
