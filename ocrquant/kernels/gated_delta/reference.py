"""The gated delta rule in plain torch: the definition, and a chunked form.

Knows the formulas of arXiv 2412.06464 and nothing else. The chunked form writes the triangular inverse as a
product of squared powers, which is exact and needs no loop over rows.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import FunctionCtx

CHUNK = 32


def recurrent_gated_delta_rule(q: Tensor, k: Tensor, v: Tensor, log_gate: Tensor, beta: Tensor) -> Tensor:
    """The definition, one token after the other; shapes as `gated_delta_rule`, any float dtype."""
    repeat = v.shape[2] // q.shape[2]
    q, k = q.repeat_interleave(repeat, dim=2), k.repeat_interleave(repeat, dim=2)
    state = torch.zeros(*v.shape[:1], v.shape[2], k.shape[-1], v.shape[-1], dtype=v.dtype, device=v.device)
    outputs = []
    for t in range(v.shape[1]):
        state = state * log_gate[:, t].exp()[..., None, None]
        read = (state * k[:, t].unsqueeze(-1)).sum(-2)
        delta = (v[:, t] - read) * beta[:, t].unsqueeze(-1)
        state = state + k[:, t].unsqueeze(-1) * delta.unsqueeze(-2)
        outputs.append((state * q[:, t].unsqueeze(-1)).sum(-2))
    return torch.stack(outputs, dim=1)


class UnitLowerInverse(torch.autograd.Function):
    """(I + M)^-1 for strictly lower M [..., C, C] by (I - M)(I + M^2)(I + M^4)...; exact since M^C = 0."""

    @staticmethod
    def forward(ctx: FunctionCtx, strict: Tensor) -> Tensor:
        """Return the inverse, fp32 [..., C, C]."""
        size = strict.shape[-1]
        identity = torch.eye(size, dtype=strict.dtype, device=strict.device)
        inverse, power, reach = identity - strict, strict, 2
        while reach < size:
            power = power @ power
            inverse = inverse + inverse @ power
            reach *= 2
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> Tensor:
        """d(A^-1) = -A^-T dA^-1 A^-T.

        Entries above the diagonal are constant zero and drop out downstream.
        """
        inverse: Tensor = ctx.saved_tensors[0]  # type: ignore[attr-defined]
        return -(inverse.mT @ gradient @ inverse.mT)


def chunked_gated_delta_rule(q: Tensor, k: Tensor, v: Tensor, log_gate: Tensor, beta: Tensor) -> Tensor:
    """The same rule in chunks of 32 tokens; shapes as `gated_delta_rule`, fp32 or fp64."""
    repeat = v.shape[2] // q.shape[2]
    q, k = (x.repeat_interleave(repeat, dim=2) for x in (q, k))
    q, k, v, log_gate, beta = (x.transpose(1, 2) for x in (q, k, v, log_gate, beta))
    batch, heads, length, _ = v.shape
    pad = -length % CHUNK
    if pad:
        q, k, v = (F.pad(x, (0, 0, 0, pad)) for x in (q, k, v))
        log_gate, beta = F.pad(log_gate, (0, pad)), F.pad(beta, (0, pad))
    num_chunks = (length + pad) // CHUNK
    q, k, v = (x.reshape(batch, heads, num_chunks, CHUNK, -1) for x in (q, k, v))
    beta = beta.reshape(batch, heads, num_chunks, CHUNK, 1)
    total = log_gate.reshape(batch, heads, num_chunks, CHUNK).cumsum(-1)
    lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()
    decay = (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(~lower, float("-inf")).exp()
    growth = total.exp().unsqueeze(-1)
    k_beta = k * beta
    strict = ((k_beta @ k.mT) * decay).tril(-1)
    inverse: Tensor = UnitLowerInverse.apply(strict)  # type: ignore[no-untyped-call]
    solved = inverse @ torch.cat([v * beta, k_beta * growth], dim=-1)
    values, key_decay = solved.split([v.shape[-1], k.shape[-1]], dim=-1)
    within = (q @ k.mT) * decay
    q_decayed = q * growth
    k_tail = k * (total[..., -1:] - total).exp().unsqueeze(-1)
    chunk_decay = total[..., -1].exp()[..., None, None]
    state = None
    outputs = []
    for i in range(num_chunks):
        fresh = values[:, :, i]
        if state is not None:
            fresh = fresh - key_decay[:, :, i] @ state
        out = within[:, :, i] @ fresh
        if state is not None:
            out = out + q_decayed[:, :, i] @ state
        outputs.append(out)
        update = k_tail[:, :, i].mT @ fresh
        state = update if state is None else state * chunk_decay[:, :, i] + update
    return torch.cat(outputs, dim=2)[:, :, :length].transpose(1, 2)
