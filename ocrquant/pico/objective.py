"""Pico's three losses: next character, character under each column of pixels, and place of attention.

Knows the outputs of `forward`; knows nothing of data or optimisers. The column head is thrown away after
training. Which head is taught which place is a table: layer 3 learns to find both the character just written
and the next one, layer 7 the next one, since two hops are what it takes to walk along a line without losing
the place.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Qwen3_5ForConditionalGeneration

from ocrquant.pico.batches import IGNORE, Batch
from ocrquant.pico.forward import decode, vision_tokens
from ocrquant.pico.geometry import COLUMNS_PER_TOKEN, HIDDEN_SIZE, VOCAB_SIZE

# (index of the full-attention layer, query head, characters back from the predicted one)
PLACE_HEADS = ((0, 0, 1), (0, 2, 0), (1, 0, 0), (1, 2, 1))


class ColumnHead(nn.Module):
    """Linear classifier of five 4-pixel columns a vision token: [B, M, h] -> [B, M, 5, vocabulary]."""

    def __init__(self) -> None:
        """Fresh weights."""
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN_SIZE)
        self.project = nn.Linear(HIDDEN_SIZE, COLUMNS_PER_TOKEN * VOCAB_SIZE)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of every column."""
        logits: Tensor = self.project(self.norm(tokens))
        return logits.view(*tokens.shape[:2], COLUMNS_PER_TOKEN, VOCAB_SIZE)


@dataclass(slots=True, kw_only=True)
class Losses:
    """Loss tensors (None where a phase does not train that part) and how often each prediction was right."""

    column: Tensor
    text: Tensor | None
    place: Tensor | None
    column_accuracy: float
    text_accuracy: float


def _accuracy(logits: Tensor, labels: Tensor) -> float:
    return float((logits.argmax(-1) == labels).float().mean()) if labels.numel() else float("nan")


def place_loss(batch: Batch, attended: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Mean of -log(attention mass on the image tokens of the target character) over the taught heads."""
    count = batch.place.shape[-1]
    terms = []
    for layer, head, back in PLACE_HEADS:
        q, k = attended[layer]
        group = head * k.shape[1] // q.shape[1]
        scores = (q[:, head].float() @ k[:, group, 2 : 2 + count].float().mT) * q.shape[-1] ** -0.5
        other = (q[:, head].float() @ k[:, group].float().mT) * q.shape[-1] ** -0.5
        target = batch.place if not back else F.pad(batch.place[:, :-back], (0, 0, back, 0))
        queries = target.any(-1)
        causal = torch.ones(other.shape[-2:], dtype=torch.bool, device=other.device).tril()
        everything = other.masked_fill(~causal, float("-inf")).logsumexp(-1)
        wanted = scores.masked_fill(~target, -1e9).logsumexp(-1)
        terms.append((everything - wanted)[queries])
    joined = torch.cat(terms)
    return joined.mean() if joined.numel() else joined.sum()


def losses(
    model: Qwen3_5ForConditionalGeneration,
    head: ColumnHead,
    batch: Batch,
    *,
    with_text: bool,
) -> Losses:
    """All losses of one batch; `with_text` false trains the vision encoder alone."""
    tokens = vision_tokens(model, batch)
    judged = batch.columns != IGNORE
    column_labels = batch.columns[judged]
    column_logits = head(tokens)[judged].float()
    column = (
        F.cross_entropy(column_logits, column_labels) if len(column_labels) else column_logits.sum() * 0.0
    )
    seen = column_labels > 0
    result = Losses(
        column=column,
        text=None,
        place=None,
        column_accuracy=_accuracy(column_logits[seen], column_labels[seen]),
        text_accuracy=float("nan"),
    )
    if not with_text:
        return result
    hidden, attended = decode(model, batch, tokens)
    answers = batch.labels != IGNORE
    logits = model.lm_head(hidden[answers]).float()
    result.text = F.cross_entropy(logits, batch.labels[answers])
    with torch.autocast(hidden.device.type, enabled=False):
        result.place = place_loss(batch, attended)
    result.text_accuracy = _accuracy(logits, batch.labels[answers])
    return result
