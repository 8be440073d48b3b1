"""Plain torch definition of ``selector_walk``."""

from __future__ import annotations

import torch
from torch import Tensor

from ocrquant.kernels.emit import wide


def selector_walk_reference(
    logits: Tensor,
    gate: Tensor,
    predecessor: Tensor,
    successor: Tensor,
    tokens: Tensor,
    block: int,
    top_k: int,
    out_tokens: Tensor,
    out_alone: Tensor,
) -> None:
    """Chooses a token for every slot of a block in order, given the choice before it (DFlash2).

    The candidates of a slot are its ``top_k`` largest logits, by falling logit and among equals by rising
    index; NaN counts as -inf. Candidate c behind token p scores
    ``logit[c] + sum over the rank of predecessor[p] * gate[slot] * successor[c]``, in float32; the largest
    score is taken, the first candidate among equals. The first row of a block is the token before its first
    slot.

    Args:
        logits: float32 [R, V].
        gate: A[R, rank], row stride free.
        predecessor: A[V, rank].
        successor: A[V, rank].
        tokens: int32 [R]; only that of the first row of each block is read.
        block: Rows of a block; divides R.
        top_k: Candidates of a slot.
        out_tokens: int32 [R], overwritten; the first one of a block is its token.
        out_alone: int32 [R], overwritten: the same by the largest logit of each slot alone.
    """
    unary, candidates = logits.nan_to_num(float("-inf"), float("inf"), float("-inf")).sort(
        dim=-1, descending=True, stable=True
    )
    shape = (-1, block, top_k)
    unary, candidates = unary[:, :top_k].reshape(shape), candidates[:, :top_k].reshape(shape)
    gates = wide(gate).unflatten(0, (-1, block))
    previous = tokens.view(-1, block)[:, 0].long()
    chosen, alone = [previous], [previous]
    for slot in range(1, block):
        before = wide(predecessor[previous]) * gates[:, slot]
        after = wide(successor[candidates[:, slot]])
        scores = unary[:, slot] + (after @ before.unsqueeze(-1)).squeeze(-1)
        # The largest, and the first of equals; argmax names any of them.
        best = (scores == scores.amax(-1, keepdim=True)).int().argmax(-1, keepdim=True)
        previous = candidates[:, slot].gather(-1, best).squeeze(-1)
        chosen.append(previous)
        alone.append(candidates[:, slot, 0])
    out_tokens.copy_(torch.stack(chosen, 1).flatten())
    out_alone.copy_(torch.stack(alone, 1).flatten())
