"""Losses of a drafter.

Cross-entropy to the target's own tokens, early slots weighing more (DFlash, arXiv 2602.06036): what comes
after the first wrong draft is thrown away. The selector learns to pick the right one of a slot's candidates,
given the right predecessor.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ocrquant.drafter.batching import NO_LABEL, Batch
from ocrquant.drafter.model import DraftModel

__all__ = ["block_loss", "slot_weights"]


def slot_weights(num_slots: int, decay: float) -> Tensor:
    """float32 [slots]: exp(-j / decay) for slots j = 0, 1, ...; 7 slots for blocks of 16."""
    return torch.exp(-torch.arange(num_slots, dtype=torch.float32) / decay)


def block_loss(
    model: DraftModel, hidden: Tensor, head: Tensor, batch: Batch, decay: float
) -> tuple[Tensor, Tensor | None]:
    """Weighted mean loss of the slots, and of the selector where the drafter has one.

    Args:
        model: The drafter.
        hidden: [S, A, N, hidden], its output.
        head: [vocab, hidden] of the target.
        batch: With at least one label.
        decay: See `slot_weights`.
    """
    slots, labels = hidden[..., 1:, :], batch.labels
    weights = slot_weights(labels.shape[-1], decay).to(hidden.device) * (labels != NO_LABEL)
    logits = (slots @ head.T).float()
    unary = F.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=NO_LABEL, reduction="none")
    loss = (unary.view_as(labels) * weights).sum() / weights.sum()
    if model.selector is None:
        return loss, None
    known = labels.clamp(min=0)
    unary_scores, candidates = logits.detach().topk(model.selector.top_k)
    # A truth that is no candidate takes the place of the last one, in training alone.
    missing = (candidates != known.unsqueeze(-1)).all(-1)
    candidates[..., -1] = torch.where(missing, known, candidates[..., -1])
    unary_scores = logits.gather(-1, candidates)
    before = torch.cat([batch.anchor_tokens.unsqueeze(-1), known[..., :-1]], -1)
    added = model.selector.follow(slots, before.unsqueeze(-1), candidates).squeeze(-2)
    place = (candidates == known.unsqueeze(-1)).int().argmax(-1)
    chosen = F.cross_entropy((unary_scores + added).float().flatten(0, -2), place.flatten(), reduction="none")
    return loss, (chosen.view_as(labels) * weights).sum() / weights.sum()
