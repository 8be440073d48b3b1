"""The gated delta rule from a state in plain torch: the definition, one token after the other, in fp32."""

from __future__ import annotations

import torch
from torch import Tensor

EPSILON = 1e-6
"""Added to the sum of squares of q and k, as Hugging Face's and fla's kernels do."""


def _normalise(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + EPSILON)


def gated_delta_state_reference(
    mixed: Tensor, log_gate: Tensor, beta: Tensor, state: Tensor, key_heads: int
) -> Tensor:
    """Runs the rule over T tokens from a state and leaves the last state in its place.

    Args:
        mixed: [B, T, 2 G K + H V], q | k | v of each token, q and k not normalised; any float dtype.
        log_gate: fp32 [B, T, H], at most 0: the state is multiplied by its exponential.
        beta: [B, T, H], how much of the new value is written.
        state: fp32 [B, H, K, V], changed in place.
        key_heads: G; value head h reads key head h // (H / G).

    Returns:
        [B, T, H, V] in the dtype of `mixed`.
    """
    heads, key_dim, value_dim = state.shape[1:]
    width = key_heads * key_dim
    q, k, v = mixed.float().split([width, width, heads * value_dim], dim=-1)
    q, k = (_normalise(x.unflatten(-1, (key_heads, key_dim))) for x in (q, k))
    q, k = (x.repeat_interleave(heads // key_heads, dim=2) for x in (q * key_dim**-0.5, k))
    v = v.unflatten(-1, (heads, value_dim))
    out = torch.empty_like(v)
    for t in range(mixed.shape[1]):
        state *= log_gate[:, t].exp()[..., None, None]
        read = (state * k[:, t].unsqueeze(-1)).sum(-2)
        delta = (v[:, t] - read) * beta[:, t].float().unsqueeze(-1)
        state += k[:, t].unsqueeze(-1) * delta.unsqueeze(-2)
        out[:, t] = (state * q[:, t].unsqueeze(-1)).sum(-2)
    return out.to(mixed.dtype)
