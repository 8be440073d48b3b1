"""Greedy decoding of a batch, without the rows that are finished.

Knows the cache of Hugging Face models and when to stop; knows no pages and no text. A row that ends leaves
the batch with its keys, values and recurrent states, so that one row in a loop does not hold the others'
work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from ocrquant.adapters.encoding import Encoded
from ocrquant.metrics.loops import LOOP_CHECK_EVERY, is_loop

__all__ = ["Generated", "greedy"]

SHRINK_SHARE = 8
"""Finished rows leave once they are at least one in so many: leaving copies the cache."""


@dataclass(frozen=True, slots=True)
class Generated:
    """The answer of one row.

    Attributes:
        ids: Tokens, the end token left out.
        num_tokens: Tokens generated, the end token counted.
        finished: Whether the row ended by itself.
    """

    ids: list[int]
    num_tokens: int
    finished: bool


class _Rows:
    """The rows still running: their cache, next tokens and positions."""

    def __init__(self, model: PreTrainedModel, encoded: Encoded, max_steps: int) -> None:
        self.model = model
        self.cache = DynamicCache(config=model.config.get_text_config())
        self.index = torch.arange(len(encoded.input_ids), device=encoded.input_ids.device)
        self.position = encoded.position_ids[..., -1:] + 1
        self.length = encoded.input_ids.shape[1]
        padded = not bool(encoded.valid.all())
        room = torch.ones(len(self.index), max_steps, dtype=torch.bool, device=encoded.valid.device)
        self.mask = torch.cat([encoded.valid, room], dim=1) if padded else None
        kinds = getattr(model.config.get_text_config(), "layer_types", None) or ()
        self.is_hybrid = "linear_attention" in kinds
        output = model(
            **encoded.forward_inputs(), past_key_values=self.cache, use_cache=True, logits_to_keep=1
        )
        self.tokens = self._choose(output.logits)

    @staticmethod
    def _choose(logits: Tensor) -> Tensor:
        return logits[:, -1].float().argmax(-1)

    @staticmethod
    def _ready_made(mask: Tensor | None) -> dict[str, Tensor | None]:
        """Masks by kind of layer: building them costs as much as two layers of a small model."""
        full = None if mask is None else mask[:, None, None, :]
        return {"full_attention": full, "linear_attention": None}

    def keep(self, running: Tensor) -> None:
        """Drops the rows where `running` (bool [rows]) is false."""
        chosen = running.nonzero().squeeze(1)
        self.cache.reorder_cache(chosen)
        self.index, self.tokens = self.index[chosen], self.tokens[chosen]
        self.position = self.position[..., chosen, :]
        self.mask = None if self.mask is None else self.mask[chosen]

    def step(self) -> None:
        """Feeds the chosen tokens and chooses the next ones."""
        self.length += 1
        mask = None if self.mask is None else self.mask[:, : self.length]
        output = self.model(
            input_ids=self.tokens[:, None],
            position_ids=self.position,
            attention_mask=self._ready_made(mask) if self.is_hybrid else mask,
            past_key_values=self.cache,
            use_cache=True,
        )
        self.position = self.position + 1
        self.tokens = self._choose(output.logits)


@torch.no_grad()
def greedy(
    model: PreTrainedModel,
    encoded: Encoded,
    *,
    stop_ids: Sequence[int],
    limits: Sequence[int],
    stop_at_loop: bool = False,
) -> list[Generated]:
    """The most likely token at every step, the same as `generate` with `do_sample=False` gives.

    Args:
        model: The Hugging Face model.
        encoded: Prompts padded on the left, on the device of the model.
        stop_ids: Tokens that end an answer.
        limits: Most tokens of each row.
        stop_at_loop: Also end a row whose last tokens are one phrase over and over; it counts as unfinished.
    """
    assert encoded.padding_side == "left", "prompts must end where the answers begin"
    stops = frozenset(stop_ids)
    answers: list[list[int]] = [[] for _ in limits]
    finished = [False] * len(limits)
    rows = _Rows(model, encoded, max(limits))
    for step in range(1, max(limits) + 1):
        running = []
        for row, token in zip(rows.index.tolist(), rows.tokens.tolist(), strict=True):
            if finished[row] or len(answers[row]) >= limits[row]:
                running.append(False)
                continue
            answers[row].append(token)
            finished[row] = token in stops
            looping = stop_at_loop and step % LOOP_CHECK_EVERY == 0 and is_loop(answers[row])
            running.append(not finished[row] and not looping and len(answers[row]) < limits[row])
        if not any(running):
            break
        if running.count(False) * SHRINK_SHARE >= len(running):
            rows.keep(torch.tensor(running, device=rows.index.device))
        rows.step()
    return [
        Generated(ids[:-1] if done else ids, len(ids), done)
        for ids, done in zip(answers, finished, strict=True)
    ]
