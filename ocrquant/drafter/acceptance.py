"""Acceptance length of a drafter on cached answers, without running the target.

A greedy target that verifies a block emits its own tokens, which are cached: a draft is accepted as far as it
equals them. So the walk of draft, verify, accept over an answer can be counted exactly from the drafts alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from ocrquant.drafter.batching import anchor_places, collate
from ocrquant.drafter.model import DraftModel
from ocrquant.drafter.store import TargetSequence

__all__ = ["Acceptance", "draft_all", "lengths", "measure_acceptance", "walk"]

_ANCHORS = 16
"""Blocks that are drafted at a time; the attention among them grows with the square."""


@dataclass(slots=True)
class Acceptance:
    """Tokens and steps of some answers.

    Attributes:
        num_tokens: Emitted after the first token of each answer, which comes with the prompt.
        num_steps: Verifications by the target.
        survived: At place j the steps whose first j + 1 drafts were all accepted.
    """

    num_tokens: int = 0
    num_steps: int = 0
    survived: list[int] = field(default_factory=list)

    @property
    def length(self) -> float:
        """Tokens that one verification emits on average: accepted drafts and the target's own one."""
        return self.num_tokens / self.num_steps if self.num_steps else float("nan")

    def add(self, other: Acceptance) -> None:
        """Counts other answers with these."""
        self.num_tokens += other.num_tokens
        self.num_steps += other.num_steps
        pairs = zip_longest(self.survived, other.survived, fillvalue=0)
        self.survived = [one + two for one, two in pairs]

    def record(self) -> dict[str, Any]:
        """For a file: length, and by place the share of steps whose drafts were right up to there."""
        shares = [round(count / max(1, self.num_steps), 4) for count in self.survived]
        return {"length": round(self.length, 3), "steps": self.num_steps, "survival": shares}


def walk(tokens: Tensor, answer_start: int, drafts: Tensor) -> Acceptance:
    """Counts the steps over one answer.

    Args:
        tokens: int64 [T], prompt and answer.
        answer_start: Place of the first token of the answer, which is known before the first step.
        drafts: int64 [anchors, S], the draft from each place of the answer but the last.
    """
    found, place = Acceptance(survived=[0] * drafts.shape[1]), answer_start
    while place < len(tokens) - 1:
        truth = tokens[place + 1 : place + 1 + drafts.shape[1]]
        draft = drafts[place - answer_start][: len(truth)]
        wrong = (draft != truth).nonzero()
        accepted = int(wrong[0]) if len(wrong) else len(truth)
        emitted = min(accepted + 1, len(tokens) - 1 - place)
        found.num_tokens += emitted
        found.num_steps += 1
        for slot in range(accepted):
            found.survived[slot] += 1
        place += emitted
    return found


@torch.no_grad()
def draft_all(
    model: DraftModel, sequence: TargetSequence, embedding: Tensor, head: Tensor
) -> tuple[Tensor, Tensor]:
    """Drafts from every place of an answer: int64 [anchors, S], by the slots alone and by the selector.

    Without a selector both are the same.
    """
    alone, selected = [], []
    for anchors in anchor_places(sequence).split(_ANCHORS):
        batch = collate([sequence], [anchors], embedding, model.config)
        slots = model(batch.blocks)[0, :, 1:]
        logits = slots @ head.T
        alone.append(logits.argmax(-1))
        if model.selector is not None:
            selected.append(model.selector.walk(logits, slots, batch.anchor_tokens[0]))
    return torch.cat(alone), torch.cat(selected or alone)


def measure_acceptance(
    model: DraftModel, sequences: Iterable[TargetSequence], embedding: Tensor, head: Tensor
) -> dict[str, dict[str, Acceptance]]:
    """Acceptance by kind of page, by the slots alone (``unary``) and with the selector (``selected``)."""
    found: dict[str, dict[str, Acceptance]] = {}
    for sequence in sequences:
        both = zip(("unary", "selected"), draft_all(model, sequence, embedding, head), strict=True)
        for way, drafts in both:
            total = found.setdefault(sequence.kind, {}).setdefault(way, Acceptance())
            total.add(walk(sequence.tokens, sequence.answer_start, drafts))
    return found


def lengths(found: dict[str, dict[str, Acceptance]]) -> dict[str, float]:
    """``kind.way`` -> acceptance length, for a log, by kind."""
    return {f"{kind}.{way}": a.length for kind in sorted(found) for way, a in found[kind].items()}
