"""Held-out pages through every arm: greedy output, then divergence from bf16 along the truth.

Batches depend on the pages alone and each finished one is on disk before the next begins, so a run that was
killed and repeated ends with the same bytes, also where no native kernels keep a page's bits from depending
on its neighbours. Knows readers and pages. Does not judge what comes out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ocrquant.artifacts import ArmName, ArmTranscript, PageTranscripts, PartialStage, RuntimeRecord
from ocrquant.calibrate.batching import plan_batches
from ocrquant.engine.scoring import Piece
from ocrquant.evaluate.found import FoundOutputs
from ocrquant.evaluate.readers import Maker, NamedMakers, Reader
from ocrquant.evaluate.truth import Tokens, Truth, known_truth, model_truth
from ocrquant.kernels.selection import count_launches
from ocrquant.metrics.divergence import kl_from_logits
from ocrquant.pages import Page
from ocrquant.progress import progress_bar

__all__ = ["Readings", "Speed", "read_pages"]

MAX_REFERENCE_BYTES = 1 << 28
"""Logits of bf16 kept from one arm to the next; beyond that they are computed again, bit for bit."""

Advance = Callable[[int], None]


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
    processor: Tokens,
    pages: Sequence[Page],
    arms: NamedMakers,
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
    """An arm that is made when something is left to do for it."""

    name: ArmName
    make: Maker

    @cached_property
    def reader(self) -> Reader:
        return self.make()


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
        reader, batch = arm.reader, batches[number]
        begin = time.perf_counter()
        with count_launches() as ops:
            values = reader.transcribe(batch, max_new_tokens)
        seconds += time.perf_counter() - begin
        num_pages, num_tokens = (
            num_pages + len(batch),
            num_tokens + sum(value["num_tokens"] for value in values.values()),
        )
        record = reader.record(ops).model_dump(mode="json")
        found.add("text", arm.name, number, values, runtime=record)
        advance(len(batch))
    if num_pages:
        note(Speed(arm=arm.name, step="text", num_pages=num_pages, num_tokens=num_tokens, seconds=seconds))


class _References:
    """Logits of bf16 at the answer positions of teacher-forced pages, kept as far as they are small."""

    def __init__(self, arm: _Arm) -> None:
        self._arm = arm
        self._kept: dict[int, list[Piece]] = {}
        self._room = MAX_REFERENCE_BYTES

    def pieces(self, number: int, part: Sequence[Page], truths: Mapping[str, Truth]) -> Iterator[Piece]:
        """The pieces of a part by its number."""
        if number in self._kept:
            yield from self._kept[number]
            return
        held: list[Piece] = []
        size = 0
        for piece in self._arm.reader.score(part, truths):
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
        part = parts[number]
        begin = time.perf_counter()
        lengths = [len(truths[page.id].ids) for page in part]
        pieces = arm.reader.score(part, truths)
        divergences = _divergences(references.pieces(number, part, truths), pieces, lengths)
        values = {page.id: _finite_sum(kl) for page, kl in zip(part, divergences, strict=True)}
        seconds += time.perf_counter() - begin
        num_pages, num_tokens = num_pages + len(part), num_tokens + sum(len(kl) for kl in divergences)
        found.add("kl", arm.name, number, values)
        advance(len(part))
    if num_pages:
        note(Speed(arm=arm.name, step="kl", num_pages=num_pages, num_tokens=num_tokens, seconds=seconds))


def _divergences(
    references: Iterator[Piece], pieces: Iterator[Piece], lengths: Sequence[int]
) -> list[Tensor]:
    """KL from bf16 in nats at every position of each answer."""
    found = [torch.full((length,), torch.nan) for length in lengths]
    for reference, piece in zip(references, pieces, strict=True):
        assert (reference.answer, reference.tokens) == (piece.answer, piece.tokens), "arms of one kind"
        found[piece.answer][piece.tokens] = kl_from_logits(reference.logits, piece.logits).cpu()
    return found


def _plan_parts(pages: Sequence[Page], truths: Mapping[str, Truth], batch_size: int) -> list[list[Page]]:
    """Pages for teacher-forced passes, by length."""
    order = sorted(pages, key=lambda page: (truths[page.id].length, page.id))
    return [order[first : first + batch_size] for first in range(0, len(order), batch_size)]


def _truth(processor: Tokens, page: Page, transcription: str, longest: int) -> Truth:
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
