"""Held-out pages through every arm's engine: greedy output, then divergence from bf16 along the truth.

Batches depend on the pages alone and each finished one is on disk before the next begins, so a run that was
killed and repeated ends with the same bytes, also where no native kernels keep a page's bits from depending
on its neighbours. Knows engines and pages. Does not judge what comes out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ocrquant.artifacts import ArmName, ArmTranscript, PageTranscripts, PartialStage, RuntimeRecord
from ocrquant.calibrate.batching import plan_batches
from ocrquant.engine.loading import Runtime
from ocrquant.engine.pages import page_prompt
from ocrquant.engine.request import FinishReason
from ocrquant.engine.sampling import SamplingParams
from ocrquant.engine.scoring import ForcedAnswer, Piece, Scorer
from ocrquant.evaluate.arms import runtime_record
from ocrquant.evaluate.found import FoundOutputs
from ocrquant.evaluate.truth import Truth, known_truth, model_truth
from ocrquant.kernels.selection import count_launches
from ocrquant.metrics.divergence import kl_from_logits
from ocrquant.models.processing import Processor
from ocrquant.pages import Page, page_image
from ocrquant.progress import progress_bar

__all__ = ["Readings", "Speed", "read_pages"]

MAX_REFERENCE_BYTES = 1 << 28
"""Logits of bf16 kept from one arm to the next; beyond that they are computed again, bit for bit."""

Advance = Callable[[int], None]
Maker = Callable[[], Runtime]


@dataclass(frozen=True, slots=True)
class Readings:
    """What came of all pages.

    Attributes:
        pages: Outputs, in the order of the pages.
        runtimes: What computed each arm.
    """

    pages: list[PageTranscripts]
    runtimes: dict[ArmName, RuntimeRecord]


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """What this process did for one arm, and how long it took.

    Attributes:
        arm: The arm.
        step: ``text`` or ``kl``.
        num_pages: Pages.
        num_tokens: Tokens generated, or predictions compared.
        seconds: Images included, loading not.
    """

    arm: ArmName
    step: str
    num_pages: int
    num_tokens: int
    seconds: float


def read_pages(
    processor: Processor,
    pages: Sequence[Page],
    arms: Sequence[tuple[ArmName, Maker]],
    partial: PartialStage,
    *,
    max_new_tokens: int,
    batch_size: int,
    longest: int,
    note: Callable[[Speed], None],
) -> Readings:
    """Shows all pages to all arms.

    Args:
        processor: Of the source model.
        pages: Held-out pages; where a page has no ground truth, the output of the first arm becomes its
            truth.
        arms: Name and maker of each arm, bf16 first. An arm is made when its turn comes and dropped after
            it, so that bf16 and one other at a time take memory.
        partial: What an earlier process has done.
        max_new_tokens: Longest output.
        batch_size: Pages at once.
        longest: Longest sequence that the engines have room for.
        note: Is told how fast each arm was.

    Raises:
        ImageError: An image cannot be read.
        ModelError: The runtime does not run an arm.
        PageSizeError: A page with its truth exceeds the context of the model.
        OutputError: The run folder is not writable or the disk is full.
    """
    batches = plan_batches(pages, batch_size)
    found = FoundOutputs(partial.journal("outputs"))
    work = (2 * len(arms) - 1) * len(pages)
    (base, make_base), others = arms[0], arms[1:]
    base_arm = _Arm(base, make_base)
    with progress_bar("evaluate", work, "pages", done=found.num_pages) as advance:
        _transcribe_all(base_arm, batches, found, max_new_tokens, advance, note)
        truths = {
            page.id: _truth(processor, page, found.texts[base, page.id]["text"], longest) for page in pages
        }
        parts = _plan_parts(pages, truths, batch_size)
        references = _References(base_arm)
        for name, make in others:
            arm = _Arm(name, make)
            _transcribe_all(arm, batches, found, max_new_tokens, advance, note)
            _measure_all(references, arm, parts, truths, found, advance, note)
    return Readings(
        [_collect(page, truths[page.id], [name for name, _ in arms], found) for page in pages],
        {name: found.runtimes[name] for name, _ in arms},
    )


@dataclass
class _Arm:
    """An arm whose engine is made when something is left to do for it."""

    name: ArmName
    make: Maker

    @cached_property
    def runtime(self) -> Runtime:
        return self.make()

    @cached_property
    def scorer(self) -> Scorer:
        return Scorer(self.runtime.engine, self.runtime.runner)


def _transcribe_all(
    arm: _Arm,
    batches: Sequence[Sequence[Page]],
    found: FoundOutputs,
    max_new_tokens: int,
    advance: Advance,
    note: Callable[[Speed], None],
) -> None:
    """The texts of the batches that are left."""
    seconds, num_pages, num_tokens = 0.0, 0, 0
    for number in found.todo("text", arm.name, len(batches)):
        runtime, batch = arm.runtime, batches[number]
        begin = time.perf_counter()
        with count_launches() as ops:
            values = _transcribe(runtime, batch, max_new_tokens)
        seconds += time.perf_counter() - begin
        num_pages, num_tokens = (
            num_pages + len(batch),
            num_tokens + sum(value["num_tokens"] for value in values.values()),
        )
        record = runtime_record(runtime, ops).model_dump(mode="json")
        found.add("text", arm.name, number, values, runtime=record)
        advance(len(batch))
    if num_pages:
        note(Speed(arm=arm.name, step="text", num_pages=num_pages, num_tokens=num_tokens, seconds=seconds))


def _transcribe(runtime: Runtime, batch: Sequence[Page], max_new_tokens: int) -> dict[str, dict[str, Any]]:
    """What an arm reads on some pages, by their ids."""
    sampling = SamplingParams(max_tokens=max_new_tokens)
    for page in batch:
        encoded = runtime.processor.encode(page_image(page), page.kind)
        runtime.engine.submit(page_prompt(encoded), sampling, page.id)
    results = runtime.engine.run_until_done()
    return {
        page.id: {
            "text": results[page.id].text,
            "num_tokens": results[page.id].num_generated,
            "finished": results[page.id].finish_reason is FinishReason.END,
        }
        for page in batch
    }


class _References:
    """Logits of bf16 at the answer positions of teacher-forced pages, kept as far as they are small."""

    def __init__(self, arm: _Arm) -> None:
        self._arm = arm
        self._kept: dict[int, list[Piece]] = {}
        self._room = MAX_REFERENCE_BYTES

    def pieces(self, number: int, answers: Sequence[ForcedAnswer]) -> Iterator[Piece]:
        """The pieces of a part by its number."""
        if number in self._kept:
            yield from self._kept[number]
            return
        held: list[Piece] = []
        size = 0
        for piece in self._arm.scorer.score(answers):
            size += piece.logits.nbytes
            if size <= self._room:
                held.append(piece)
            yield piece
        if size <= self._room:
            self._kept[number] = held
            self._room -= size


def _measure_all(
    references: _References,
    arm: _Arm,
    parts: Sequence[Sequence[Page]],
    truths: Mapping[str, Truth],
    found: FoundOutputs,
    advance: Advance,
    note: Callable[[Speed], None],
) -> None:
    """The divergences of the parts that are left."""
    seconds, num_pages, num_tokens = 0.0, 0, 0
    for number in found.todo("kl", arm.name, len(parts)):
        part, runtime = parts[number], arm.runtime
        begin = time.perf_counter()
        answers = [_forced(runtime.processor, page, truths[page.id]) for page in part]
        divergences = _divergences(references.pieces(number, answers), arm.scorer, answers)
        values = {page.id: _finite_sum(kl) for page, kl in zip(part, divergences, strict=True)}
        seconds += time.perf_counter() - begin
        num_pages, num_tokens = num_pages + len(part), num_tokens + sum(len(kl) for kl in divergences)
        found.add("kl", arm.name, number, values)
        advance(len(part))
    if num_pages:
        note(Speed(arm=arm.name, step="kl", num_pages=num_pages, num_tokens=num_tokens, seconds=seconds))


def _divergences(
    references: Iterator[Piece], scorer: Scorer, answers: Sequence[ForcedAnswer]
) -> list[Tensor]:
    """KL from bf16 in nats at every position of each answer."""
    found = [torch.full((len(answer.ids),), torch.nan) for answer in answers]
    for reference, piece in zip(references, scorer.score(answers), strict=True):
        assert (reference.answer, reference.tokens) == (piece.answer, piece.tokens), "engines of one size"
        found[piece.answer][piece.tokens] = kl_from_logits(reference.logits, piece.logits).cpu()
    return found


def _forced(processor: Processor, page: Page, truth: Truth) -> ForcedAnswer:
    prompt = page_prompt(processor.encode(page_image(page), page.kind))
    return ForcedAnswer(prompt, np.array(truth.ids, np.int32))


def _plan_parts(pages: Sequence[Page], truths: Mapping[str, Truth], batch_size: int) -> list[list[Page]]:
    """Pages for teacher-forced passes, by length."""
    order = sorted(pages, key=lambda page: (truths[page.id].length, page.id))
    return [order[first : first + batch_size] for first in range(0, len(order), batch_size)]


def _truth(processor: Processor, page: Page, transcription: str, longest: int) -> Truth:
    if page.truth_source == "model":
        return model_truth(processor, page, transcription, longest)
    return known_truth(processor, page)


def _finite_sum(kl: Tensor) -> float | None:
    return float(kl.double().sum()) if bool(torch.isfinite(kl).all()) else None


def _collect(page: Page, truth: Truth, arms: Sequence[ArmName], found: FoundOutputs) -> PageTranscripts:
    return PageTranscripts(
        page=page.id,
        kind=page.kind,
        document=page.document,
        truth=truth.judged,
        truth_source=page.truth_source,
        arms={
            arm: ArmTranscript(
                **found.texts[arm, page.id],
                kl_sum=found.divergences.get((arm, page.id), 0.0),
                num_kl_tokens=len(truth.ids),
            )
            for arm in arms
        },
    )
