"""The candidate selector of DFlash2: parallel guesses of a block, put in an order that makes sense together.

Each slot offers its likeliest tokens; a bilinear bigram, gated by the slot's hidden state, says how well a
candidate follows its predecessor, and one walk along the block takes the best. Source: as `convolution`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["CandidateSelector"]

_DEVIATION = 0.02


class CandidateSelector(nn.Module):
    """Scores of candidates given their predecessors.

    Args:
        vocab: Tokens.
        hidden: Width of a slot's hidden state.
        rank: Width of the codebooks.
        top_k: Candidates of a slot.
    """

    def __init__(self, vocab: int, hidden: int, rank: int, top_k: int) -> None:
        super().__init__()
        self.top_k = top_k
        self.predecessor_codebook = nn.Parameter(torch.randn(vocab, rank) * _DEVIATION)
        self.successor_codebook = nn.Parameter(torch.randn(vocab, rank) * _DEVIATION)
        self.hidden_projection = nn.Linear(hidden, rank, bias=False)

    def follow(self, hidden: Tensor, predecessors: Tensor, candidates: Tensor) -> Tensor:
        """[..., P, K]: what following each predecessor adds to each candidate.

        Args:
            hidden: [..., hidden], of the slots.
            predecessors: int64 [..., P].
            candidates: int64 [..., K].
        """
        gate = self.hidden_projection(hidden).unsqueeze(-2)
        before = self.predecessor_codebook[predecessors] * gate
        scores: Tensor = before @ self.successor_codebook[candidates].transpose(-1, -2)
        return scores

    @torch.no_grad()
    def walk(self, logits: Tensor, hidden: Tensor, anchors: Tensor) -> Tensor:
        """int64 [..., S], the greedy choice of each slot given the choice before it.

        Args:
            logits: [..., S, vocab], of the slots alone.
            hidden: [..., S, hidden].
            anchors: int64 [...], the token before the first slot.
        """
        unary, candidates = logits.topk(self.top_k)
        chosen, previous = [], anchors
        for slot in range(logits.shape[-2]):
            added = self.follow(
                hidden[..., slot, :], previous.unsqueeze(-1), candidates[..., slot, :]
            ).squeeze(-2)
            best = (unary[..., slot, :] + added).argmax(-1, keepdim=True)
            previous = candidates[..., slot, :].gather(-1, best).squeeze(-1)
            chosen.append(previous)
        return torch.stack(chosen, -1)
