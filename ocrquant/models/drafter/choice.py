"""Drafts from the logits of a block: the likeliest token of each slot, or one walk by the selector (DFlash2).

A draft is what the drafter holds likeliest, whatever the temperature of the request. Knows logits and hidden
states of slots; knows neither layers nor pages.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ocrquant.kernels.linear import linear, pack
from ocrquant.kernels.operand import Operand
from ocrquant.kernels.sample import sample
from ocrquant.kernels.selector_walk import selector_walk
from ocrquant.models.drafter.blocks import DraftBlocks
from ocrquant.models.drafter.config import DrafterConfig
from ocrquant.models.weights import WeightReader

__all__ = ["Choice"]


class Choice:
    """Chooses the drafts of blocks.

    Args:
        config: Of the drafter.
        reader: Its tensors; those of a selector are taken.
        max_rows: Most rows of all blocks.

    Attributes:
        tokens: int32 [most rows], the drafts of the last blocks, each block behind its known token.
        alone: int32 [most rows], what the slots alone would have drafted; the same without a selector.
    """

    def __init__(self, config: DrafterConfig, reader: WeightReader, max_rows: int) -> None:
        device = reader.device
        self.tokens = torch.zeros(max_rows, dtype=torch.int32, device=device)
        self.alone, self._selector = self.tokens, None
        self._top_k = config.selector_top_k or 0
        self._zeros = torch.zeros(max_rows, dtype=torch.float32, device=device)
        self._seed = torch.zeros(max_rows, 2, dtype=torch.int32, device=device)
        self._gaps = torch.empty_like(self._zeros)
        if config.selector_rank is None:
            return
        self.alone = torch.zeros_like(self.tokens)
        shape = (config.vocab_size, config.selector_rank)
        books = [reader.take(f"selector.{name}_codebook", shape) for name in ("predecessor", "successor")]
        shape = (config.selector_rank, config.hidden_size)
        gate = pack([reader.take("selector.hidden_projection.weight", shape)], device)
        self._selector = (gate, books[0], books[1])
        self._gates = torch.empty(max_rows, config.selector_rank, dtype=reader.dtype, device=device)

    def __call__(self, blocks: DraftBlocks, hidden: Tensor, logits: Tensor) -> None:
        """Chooses into `tokens` and `alone`.

        Args:
            blocks: R rows.
            hidden: A[R, hidden], what the head read.
            logits: float32 [R, vocab].
        """
        rows = slice(0, len(logits))
        if self._selector is None:
            cold, position = self._zeros[rows], blocks.places[0]
            sample(logits, cold, cold, self._seed[rows], position, self.tokens[rows], self._gaps[rows])
            return
        gate, before, after = self._selector
        linear(Operand(plain=hidden), gate, self._gates[rows])
        selector_walk(
            logits,
            self._gates[rows],
            before,
            after,
            blocks.tokens,
            blocks.size,
            self._top_k,
            self.tokens[rows],
            self.alone[rows],
        )
