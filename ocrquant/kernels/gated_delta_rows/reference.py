"""The gated delta rule over rows of many requests in plain torch: the definition."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

EPSILON = 1e-6
"""Added to the sum of squares of q and k, as Hugging Face's and fla's kernels do."""


@dataclass(frozen=True, slots=True)
class DeltaTerms:
    """What the rule reads of each of R rows, in the dtype of the state."""

    q: Tensor  # [R, H, K], normalised and scaled by K^-1/2
    k: Tensor  # [R, H, K], normalised
    v: Tensor  # [R, H, V]
    beta: Tensor  # [R, H], how much of the new value is written
    log_gate: Tensor  # [R, H], at most 0


def _normalise(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + EPSILON)


def delta_terms(
    mixed: Tensor, a: Tensor, b: Tensor, a_log: Tensor, dt_bias: Tensor, state: Tensor, key_heads: int
) -> DeltaTerms:
    """The terms of the rule from what the projections and the convolution leave behind.

    beta is sigmoid(b) rounded to the dtype of b (as Hugging Face's model does; keeping it in fp32 is another
    model); everything else is taken in the dtype of the state: log_gate = -exp(a_log) softplus(a + dt_bias),
    q and k divided by their length, q also by sqrt(K). Value head h reads key head h // (H / G).

    Args:
        mixed: [R, 2 G K + H V], q | k | v of each row.
        a: [R, H].
        b: [R, H].
        a_log: [H].
        dt_bias: [H].
        state: [..., H, K, V]; only its dtype and sizes are read.
        key_heads: G.
    """
    heads, key_dim, value_dim = state.shape[-3:]
    width, wide = key_heads * key_dim, state.dtype
    q, k, v = mixed.to(wide).split([width, width, heads * value_dim], dim=-1)
    q, k = (_normalise(x.unflatten(-1, (key_heads, key_dim))) for x in (q, k))
    q, k = (x.repeat_interleave(heads // key_heads, dim=1) for x in (q * key_dim**-0.5, k))
    return DeltaTerms(
        q=q,
        k=k,
        v=v.unflatten(-1, (heads, value_dim)),
        beta=b.sigmoid().to(wide),
        log_gate=-a_log.to(wide).exp() * F.softplus(a.to(wide) + dt_bias.to(wide)),
    )


def recurrence_step(state: Tensor, terms: DeltaTerms, row: int) -> tuple[Tensor, Tensor]:
    """One token: changes the state [H, K, V] in place; returns the output and the written value u, [H, V].

    S <- e^g S + k u^T with u = beta (v - e^g S^T k); the output is S^T q of the new state.
    """
    state *= terms.log_gate[row].exp()[:, None, None]
    read = (state * terms.k[row].unsqueeze(-1)).sum(-2)
    written = (terms.v[row] - read) * terms.beta[row].unsqueeze(-1)
    state += terms.k[row].unsqueeze(-1) * written.unsqueeze(-2)
    return (state * terms.q[row].unsqueeze(-1)).sum(-2), written


def gated_delta_rows_reference(
    mixed: Tensor,
    a: Tensor,
    b: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    q_start: Tensor,
    slots: Tensor,
    fresh: Tensor,
    out: Tensor,
    key_heads: int,
) -> None:
    """Carries the rule on from each request's state, one token after the other, and leaves the last state.

    Args:
        mixed: [R, 2 G K + H V], q | k | v of each row behind the convolution, q and k not normalised; any
            float dtype; rows may be strided, as may those of a and b.
        a: [R, H] in the dtype of mixed.
        b: [R, H] in the dtype of mixed.
        a_log: [H], any float dtype (fp32 for the compiled kernel).
        dt_bias: [H] like a_log.
        state: fp32 (or fp64) [slots, H, K, V], changed in place; its dtype is that of the arithmetic.
        q_start: i32 [N + 1]; request i owns the rows q_start[i] .. q_start[i + 1].
        slots: i32 [N]; the slot of request i. Below zero: padding, whose rows come out as zeros.
        fresh: i32 [N]; where not 0, the request begins here: its state counts as zeros.
        out: [R, H V] in the dtype of mixed; the output is rounded once.
        key_heads: G.
    """
    terms = delta_terms(mixed, a, b, a_log, dt_bias, state, key_heads)
    starts = q_start.tolist()
    for i, (slot, is_fresh) in enumerate(zip(slots.tolist(), fresh.tolist(), strict=True)):
        if slot < 0:
            out[starts[i] : starts[i + 1]] = 0
            continue
        if is_fresh and starts[i + 1] > starts[i]:
            state[slot] = 0
        for row in range(starts[i], starts[i + 1]):
            value, _ = recurrence_step(state[slot], terms, row)
            out[row] = value.flatten().to(out.dtype)
