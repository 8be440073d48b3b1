"""What a model thinks of given answers: the logits at every token of each, many answers at once.

The answers go through the model as parts of prompts do, in the pages and slots of an engine that has nothing
else to do. Memory is bounded by the rows of a step, not by the length of an answer: logits are handed out
piece by piece. Knows tokens and logits; draws nothing and judges nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ocrquant.engine.engine import Engine
from ocrquant.engine.plan import Chunk, Plan, Tables
from ocrquant.engine.prompt import Prompt
from ocrquant.engine.request import Request
from ocrquant.engine.runner import ModelRunner
from ocrquant.engine.sampling import SamplingParams
from ocrquant.errors import PageSizeError, RequestError

__all__ = ["MAX_LOGITS", "ForcedAnswer", "Piece", "Scorer"]

MAX_LOGITS = 1 << 26
"""Logits of one piece, in elements: 256 MiB. A single row is never cut."""


@dataclass(frozen=True, slots=True, eq=False)
class ForcedAnswer:
    """A prompt and the answer that the model is shown, whatever it would have said.

    Attributes:
        prompt: What is asked.
        ids: int32 [T], the tokens of the answer, with the end token where that is to be judged too.
    """

    prompt: Prompt
    ids: npt.NDArray[np.int32]

    def sequence(self) -> Prompt:
        """All that the model reads: every token but the last, which predicts nothing."""
        prompt, fed = self.prompt, self.ids[:-1]
        places = np.arange(len(prompt), len(prompt) + len(fed), dtype=np.int32) + prompt.rope_delta
        return Prompt(
            np.concatenate([prompt.tokens, fed]).astype(np.int32),
            np.concatenate([prompt.positions, np.tile(places, (len(prompt.positions), 1))], axis=1),
            prompt.rope_delta,
            prompt.images,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Logits of some tokens of one answer.

    Attributes:
        answer: Index of the answer.
        first: Place in the answer of the first token.
        logits: float32 [tokens, vocab]; row i is what the model expects where token ``first + i`` stands.
    """

    answer: int
    first: int
    logits: Tensor

    @property
    def tokens(self) -> slice:
        """Places in the answer."""
        return slice(self.first, self.first + len(self.logits))


@dataclass(slots=True, eq=False)
class _Running:
    """An answer on its way; `judged` is the row of the sequence whose logits come first."""

    index: int
    request: Request
    judged: int


class Scorer:
    """Shows answers to the model of an engine.

    Args:
        engine: Idle; its pages and slots are borrowed while answers are on their way.
        runner: Computes its steps.
        max_logits: Logits of one piece, in elements.
    """

    def __init__(self, engine: Engine, runner: ModelRunner, max_logits: int = MAX_LOGITS) -> None:
        self._engine, self._runner = engine, runner
        self._config, self._pools = engine.config, engine.pools
        self._max_rows = max(1, max_logits // runner.vocab)

    def score(self, answers: Sequence[ForcedAnswer]) -> Iterator[Piece]:
        """The logits of all answers, in pieces as they come; those of one answer come in their order.

        How answers are cut and mixed depends on all of them, so equal calls give equal pieces. Where native
        kernels run, no logit depends on it.

        Args:
            answers: With at least one token each.

        Raises:
            PageSizeError: A prompt with its answer is longer than the longest sequence.
            RequestError: An answer is empty or does not fit into the pages; or the engine has work.
        """
        for number, answer in enumerate(answers):
            self._check(number, answer)
        if self._engine.has_work:
            fix = "let the engine finish first"
            raise RequestError("engine", expected="no request in progress", given="some", fix=fix)
        waiting = deque(enumerate(answers))
        running: list[_Running] = []
        try:
            while waiting or running:
                self._admit(waiting, running)
                yield from self._step(running)
                running = self._release(running)
        finally:
            for one in running:
                self._give_back(one)

    def _check(self, number: int, answer: ForcedAnswer) -> None:
        name, config = f"answer {number}", self._config
        if len(answer.ids) == 0:
            fix = "add the end token"
            raise RequestError(name, expected="at least one token", given="none", fix=fix)
        length = len(answer.prompt) + len(answer.ids)
        if length > config.max_positions:
            raise PageSizeError(
                name,
                expected=f"at most {config.max_positions} tokens with its prompt",
                given=f"{len(answer.ids)} behind a prompt of {len(answer.prompt)}",
                fix="lower the resolution of the page, or cut it",
            )
        if config.pages_for(length - 1) > self._pools.num_pages:
            expected = f"at most {self._pools.num_pages * config.page_size} tokens, all that the pages hold"
            raise RequestError(name, expected=expected, given=length - 1, fix="raise engine.num_pages")

    def _admit(self, waiting: deque[tuple[int, ForcedAnswer]], running: list[_Running]) -> None:
        """Lets answers enter in their order until one does not fit."""
        while waiting and len(running) < self._config.max_requests:
            index, answer = waiting[0]
            request = Request(f"answer {index}", index, answer.sequence(), SamplingParams(), limit=1)
            request.holding = self._pools.take(request.num_tokens)
            if request.holding is None and self._engine.prefixes is not None:
                self._engine.prefixes.make_room(self._config.pages_for(request.num_tokens))
                request.holding = self._pools.take(request.num_tokens)
            if request.holding is None:
                assert running, "an answer that does not fit alone is refused at the beginning"
                return
            waiting.popleft()
            running.append(_Running(index, request, len(answer.prompt) - 1))

    def _step(self, running: Sequence[_Running]) -> Iterator[Piece]:
        """Computes the next part of as many answers as there are rows for."""
        budget, wanted = self._config.max_step_tokens, self._max_rows
        chunks: list[Chunk] = []
        cuts: list[tuple[_Running, int, int]] = []
        rows: list[int] = []
        for one in running:
            start = one.request.num_computed
            judged = max(start, one.judged)
            end = min(one.request.num_tokens, start + budget, judged + wanted)
            if end == start:
                continue
            first = self._config.max_step_tokens - budget
            chunks.append(Chunk(one.request, start, end - start, samples=False))
            if end > judged:
                cuts.append((one, judged - one.judged, end - judged))
                rows += range(first + judged - start, first + end - start)
                wanted -= end - judged
            budget -= end - start
        encode = tuple(
            chunk.request
            for chunk in chunks
            if not chunk.request.images_encoded and chunk.request.prompt.image_runs(chunk.start, chunk.end)
        )
        tables = Tables(
            self._pools.kv.table, None if self._pools.drafter is None else self._pools.drafter.table
        )
        logits = self._runner.score(Plan((), (), tuple(chunks), tables, encode=encode), rows)
        for request in encode:
            request.images_encoded = True
        for chunk in chunks:
            chunk.request.num_computed = chunk.end
        for (one, first, _), part in zip(cuts, logits.split([count for *_, count in cuts]), strict=True):
            yield Piece(one.index, first, part)

    def _release(self, running: Sequence[_Running]) -> list[_Running]:
        """Drops images that are read, and gives back what complete answers held; the others."""
        left = []
        for one in running:
            request = one.request
            if request.images_encoded and request.num_computed >= request.prompt.images_end:
                self._runner.forget(request)
            if request.num_computed < request.num_tokens:
                left.append(one)
            else:
                self._give_back(one)
        return left

    def _give_back(self, one: _Running) -> None:
        self._runner.forget(one.request)
        assert one.request.holding is not None, "what runs has pages"
        self._pools.give(one.request.holding)
