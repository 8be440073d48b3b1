"""Held-out pages through every arm: free-running greedy output, then divergence from bf16 along the truth.

Batches depend on the pages alone and each finished one is on disk before the next begins, so a run that was
killed and repeated ends with the same bytes. Knows models and pages. Does not judge what comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from ocrquant.adapters.model import DocumentModel, Encoded, PageInput
from ocrquant.artifacts import ArmName, ArmTranscript, Journal, PageTranscripts, PartialStage
from ocrquant.calibrate.batching import plan_batches
from ocrquant.evaluate.arms import Arm, applied
from ocrquant.metrics.divergence import kl_from_logits
from ocrquant.pages import Page, page_image
from ocrquant.progress import progress_bar

__all__ = ["read_pages"]

MAX_LOGITS = 1 << 29
"""Logits of a teacher-forced pass at once, in elements."""
MAX_PADDING = 1.25
"""Longest sequence of a teacher-forced pass over its shortest one: texts differ more than images."""
MAX_REFERENCE_BYTES = 1 << 28
"""Logits of bf16 kept from one arm to the next; beyond that they are computed again, bit for bit."""

Advance = Callable[[int], None]


def read_pages(
    document: DocumentModel,
    pages: Sequence[Page],
    arms: Sequence[tuple[ArmName, Callable[[], Arm]]],
    partial: PartialStage,
    *,
    max_new_tokens: int,
    batch_size: int,
) -> list[PageTranscripts]:
    """Shows all pages to all arms.

    Args:
        document: The source model; it is as before when this returns.
        pages: Held-out pages; where a page has no ground truth, the output of the first arm becomes its
            truth.
        arms: Name and maker of each arm, bf16 first. An arm is made when its turn comes and dropped after
            it, so that one at a time takes memory.
        partial: What an earlier process has done.
        max_new_tokens: Longest output.
        batch_size: Pages at once.

    Returns:
        Outputs in the order of `pages`.

    Raises:
        ImageError: An image cannot be read.
        PageSizeError: A page with its truth exceeds the context of the model.
        OutputError: The run folder is not writable or the disk is full.
    """
    batches = plan_batches(pages, batch_size)
    found = _Found(partial.journal("outputs"))
    work = (2 * len(arms) - 1) * len(pages)
    (base, make_base), others = arms[0], arms[1:]
    with progress_bar("evaluate", work, "pages", done=found.num_pages) as advance:
        todo = found.todo("text", base, len(batches))
        if todo:
            _transcribe_all(document, make_base(), batches, todo, found, max_new_tokens, advance)
        truths = {page.id: _truth(document, page, found.texts[base, page.id]["text"]) for page in pages}
        parts = _plan_parts(document, pages, truths, batch_size)
        references = _References(document)
        for name, make in others:
            texts, passes = found.todo("text", name, len(batches)), found.todo("kl", name, len(parts))
            if not texts and not passes:
                continue
            arm = make()
            _transcribe_all(document, arm, batches, texts, found, max_new_tokens, advance)
            for number in passes:
                values = _measure(references, arm, parts[number], truths)
                found.add("kl", name, number, values)
                advance(len(parts[number]))
    return [_collect(page, truths[page.id], [name for name, _ in arms], found) for page in pages]


@dataclass(frozen=True, slots=True)
class _Truth:
    """What a page says.

    Attributes:
        judged: What outputs are compared with.
        forced: What is fed to the model; shorter only where a transcription was cut off at the context's end.
        num_tokens: Judged predictions along `forced`.
        length: Tokens of the whole sequence.
    """

    judged: str
    forced: str
    num_tokens: int
    length: int


class _Found:
    """Everything that the journal holds, by arm and page."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.texts: dict[tuple[ArmName, str], dict[str, Any]] = {}
        self.divergences: dict[tuple[ArmName, str], float | None] = {}
        self._done: set[tuple[str, ArmName, int]] = set()
        for record in journal.read():
            self._take(record)

    @property
    def num_pages(self) -> int:
        """Pages of all finished steps, each arm and step counted."""
        return len(self.texts) + len(self.divergences)

    def todo(self, step: str, arm: ArmName, num_batches: int) -> list[int]:
        """Numbers of the batches that are left."""
        return [number for number in range(num_batches) if (step, arm, number) not in self._done]

    def add(self, step: str, arm: ArmName, batch: int, pages: Mapping[str, Any]) -> None:
        """Puts a finished batch on the disk."""
        record = {"step": step, "arm": arm, "batch": batch, "pages": pages}
        self._journal.append(record)
        self._take(record)

    def _take(self, record: Mapping[str, Any]) -> None:
        target: dict[tuple[ArmName, str], Any] = self.texts if record["step"] == "text" else self.divergences
        target.update({(record["arm"], page): values for page, values in record["pages"].items()})
        self._done.add((record["step"], record["arm"], record["batch"]))


def _transcribe_all(
    document: DocumentModel,
    arm: Arm,
    batches: Sequence[Sequence[Page]],
    numbers: Sequence[int],
    found: _Found,
    max_new_tokens: int,
    advance: Advance,
) -> None:
    for number in numbers:
        batch = batches[number]
        inputs = [PageInput(page_image(page), page.kind, None, page.id) for page in batch]
        with applied(document.model, arm):
            outputs = document.transcribe(inputs, max_new_tokens, len(inputs))
        values = {
            page.id: {"text": output.text, "num_tokens": output.num_tokens, "finished": output.finished}
            for page, output in zip(batch, outputs, strict=True)
        }
        found.add("text", arm.name, number, values)
        advance(len(batch))


class _References:
    """Logits of bf16 at the answer positions of teacher-forced pages, kept as far as they are small."""

    def __init__(self, document: DocumentModel) -> None:
        self.document = document
        self._kept: dict[str, Tensor] = {}
        self._room = MAX_REFERENCE_BYTES

    def logits(self, encoded: Encoded, name: str) -> Tensor:
        """[answer positions, vocabulary] of a part, computed by the model as it is now."""
        if name in self._kept:
            return self._kept[name]
        found = self.document.logits(encoded)[encoded.answer_mask]
        if found.nbytes <= self._room:
            self._kept[name] = found
            self._room -= found.nbytes
        return found


def _measure(
    references: _References, arm: Arm, part: Sequence[Page], truths: Mapping[str, _Truth]
) -> dict[str, float | None]:
    """KL from bf16 summed over the answer of each page, in nats; None where it is not finite."""
    document = references.document
    encoded = document.encode(
        [PageInput(page_image(page), page.kind, truths[page.id].forced, page.id) for page in part]
    )
    with torch.no_grad():
        reference = references.logits(encoded, part[0].id)
        with applied(document.model, arm):
            other = document.logits(encoded)[encoded.answer_mask]
    sums = kl_from_logits(reference, other).double().split(encoded.num_answer_tokens.tolist())
    return {page.id: _finite_sum(kl) for page, kl in zip(part, sums, strict=True)}


def _plan_parts(
    document: DocumentModel, pages: Sequence[Page], truths: Mapping[str, _Truth], batch_size: int
) -> list[list[Page]]:
    """Pages for teacher-forced passes, by length: little is padding, and the logits fit into memory."""
    vocabulary = document.model.get_input_embeddings().num_embeddings
    parts: list[list[Page]] = []
    shortest = 0
    for page in sorted(pages, key=lambda page: (truths[page.id].length, page.id)):
        length = truths[page.id].length
        is_full = not parts or len(parts[-1]) == batch_size
        if (
            is_full
            or length > MAX_PADDING * shortest
            or (len(parts[-1]) + 1) * length * vocabulary > MAX_LOGITS
        ):
            parts.append([])
            shortest = length
        parts[-1].append(page)
    return parts


def _truth(document: DocumentModel, page: Page, transcription: str) -> _Truth:
    encoder = document.encoder
    # Only the size of the image counts here.
    blank = Image.new("1", (page.width, page.height))
    prompt = encoder.num_prompt_tokens(PageInput(blank, page.kind, None, page.id))
    if page.truth_source != "model":
        assert page.text is not None, f"page {page.id} has ground truth without text"
        num_tokens = len(encoder.answer_ids(page.text))
        return _Truth(page.text, page.text, num_tokens, prompt + num_tokens)
    forced = transcription
    # What was cut off at the end of the context does not fit any more once the end token is added.
    while forced and prompt + len(encoder.answer_ids(forced)) > encoder.max_positions:
        forced = forced[:-1]
    num_tokens = len(encoder.answer_ids(forced))
    return _Truth(transcription, forced, num_tokens, prompt + num_tokens)


def _finite_sum(kl: Tensor) -> float | None:
    return float(kl.sum()) if bool(torch.isfinite(kl).all()) else None


def _collect(page: Page, truth: _Truth, arms: Sequence[ArmName], found: _Found) -> PageTranscripts:
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
                num_kl_tokens=truth.num_tokens,
            )
            for arm in arms
        },
    )
