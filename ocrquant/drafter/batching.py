"""Cached sequences to batches of blocks. Knows features and places; knows no loss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ocrquant.drafter.config import DrafterConfig
from ocrquant.drafter.model import Blocks
from ocrquant.drafter.store import FeatureFile, TargetSequence

__all__ = ["Batch", "anchor_places", "collate", "plan_batches"]

NO_LABEL = -1


@dataclass(frozen=True, slots=True)
class Batch:
    """Blocks with what should come out.

    Attributes:
        blocks: What a drafter reads.
        labels: int64 [S, A, N - 1], the target's tokens after each anchor; -1 behind the end of the answer
            and in blocks that only fill up.
        anchor_tokens: int64 [S, A].
    """

    blocks: Blocks
    labels: Tensor
    anchor_tokens: Tensor

    def to(self, device: torch.device) -> Batch:
        """The same on another device."""
        b = self.blocks
        moved = Blocks(b.context.to(device), b.anchors.to(device), b.inputs.to(device))
        return Batch(moved, self.labels.to(device), self.anchor_tokens.to(device))


def anchor_places(sequence: TargetSequence) -> Tensor:
    """int64, every place from which a draft can start: the answer's tokens but the last."""
    return torch.arange(sequence.answer_start, len(sequence.tokens) - 1)


def collate(
    sequences: Sequence[TargetSequence],
    anchors: Sequence[Tensor],
    embedding: Tensor,
    config: DrafterConfig,
) -> Batch:
    """Puts blocks of some sequences together.

    Args:
        sequences: S of them.
        anchors: Places of blocks for each, within `anchor_places`; they may differ in number.
        embedding: float32 [vocab, hidden] of the target.
        config: Of the drafter.
    """
    size, most = config.block_size, max(map(len, anchors))
    length = max(len(s.features) for s in sequences)
    width = sequences[0].features.shape[1]
    context = torch.zeros(len(sequences), length, width)
    places = torch.zeros(len(sequences), most, dtype=torch.long)
    labels = torch.full((len(sequences), most, size - 1), NO_LABEL)
    tokens = torch.zeros(len(sequences), most, dtype=torch.long)
    for row, (sequence, chosen) in enumerate(zip(sequences, anchors, strict=True)):
        context[row, : len(sequence.features)] = sequence.features.float()
        places[row, : len(chosen)] = chosen
        # Blocks that only fill up stand at the first place, so that they see something.
        places[row, len(chosen) :] = sequence.answer_start
        tokens[row] = sequence.tokens[places[row]]
        padded = torch.cat([sequence.tokens, torch.full((size,), NO_LABEL)])
        labels[row, : len(chosen)] = padded[chosen[:, None] + torch.arange(1, size)]
    ids = torch.full((*places.shape, size), config.mask_token_id)
    ids[..., 0] = tokens
    return Batch(Blocks(context, places, embedding[ids]), labels, tokens)


def plan_batches(
    files: Sequence[FeatureFile], max_rows: int, block_rows: int, generator: torch.Generator
) -> Iterator[list[tuple[int, int]]]:
    """One pass over all sequences in random order, in batches of similar length.

    Args:
        files: The cache.
        max_rows: Most tokens of a batch, of context and of blocks, padding counted.
        block_rows: Tokens of the blocks of a sequence.
        generator: Of the order.

    Yields:
        (file, index) of the sequences of a batch.
    """
    lengths = [(n, f, i) for f, file in enumerate(files) for i, n in enumerate(file.num_tokens)]
    order = torch.randperm(len(lengths), generator=generator).tolist()
    # Lengths are sorted within pools of the random order, batches are then shuffled.
    pool, batches = 2048, []
    for first in range(0, len(order), pool):
        batch: list[tuple[int, int]] = []
        for length, file, index in sorted(lengths[i] for i in order[first : first + pool]):
            if batch and (len(batch) + 1) * (length + block_rows) > max_rows:
                batches.append(batch)
                batch = []
            batch.append((file, index))
        batches.append(batch)
    for i in torch.randperm(len(batches), generator=generator).tolist():
        yield batches[i]
