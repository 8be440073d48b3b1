"""Held-out pages through every arm: free-running greedy output, then divergence from bf16 along the truth.

Batches depend on the pages alone and each finished one is on disk before the next begins, so a run that was
killed and repeated ends with the same bytes. Knows models and pages. Does not judge what comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ocrquant.adapters.model import DocumentModel, PageInput
from ocrquant.artifacts import ArmName, ArmTranscript, Journal, PageTranscripts, PartialStage
from ocrquant.calibrate.batching import plan_batches
from ocrquant.evaluate.arms import Arm, applied
from ocrquant.metrics.divergence import kl_from_logits
from ocrquant.pages import Page, page_image
from ocrquant.progress import progress_bar

__all__ = ["read_pages"]

MAX_LOGITS = 1 << 29
"""Logits of a teacher-forced pass at once, in elements; a batch beyond that is passed in parts."""

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
    journal = partial.journal("outputs")
    found = _Found(journal)
    work = 2 * len(arms) - 1
    with progress_bar("evaluate", work * len(pages), "pages", done=found.num_pages) as advance:
        truths: dict[str, str] = {}
        for order, (name, make) in enumerate(arms):
            steps = [number for number in range(len(batches)) if not found.has(name, number, order > 0)]
            arm = make() if steps else None
            for number in steps:
                assert arm is not None
                _transcribe(document, arm, batches[number], number, found, max_new_tokens, advance)
            if order == 0:
                truths = {page.id: _truth(page, found.texts[name, page.id]["text"]) for page in pages}
                continue
            for number in steps:
                assert arm is not None
                _measure(document, arm, batches[number], number, truths, found, advance)
    return [_collect(page, truths[page.id], [name for name, _ in arms], found) for page in pages]


class _Found:
    """Everything that the journal holds, by arm and page."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.texts: dict[tuple[ArmName, str], dict[str, Any]] = {}
        self.divergences: dict[tuple[ArmName, str], dict[str, Any]] = {}
        self._done: set[tuple[str, ArmName, int]] = set()
        for record in journal.read():
            self._take(record)

    @property
    def num_pages(self) -> int:
        """Pages of all finished batches, each arm and step counted."""
        return len(self.texts) + len(self.divergences)

    def has(self, arm: ArmName, batch: int, with_divergence: bool) -> bool:
        """Whether nothing is left to do for a batch."""
        return ("text", arm, batch) in self._done and (
            not with_divergence or ("divergence", arm, batch) in self._done
        )

    def has_step(self, step: str, arm: ArmName, batch: int) -> bool:
        return (step, arm, batch) in self._done

    def add(self, step: str, arm: ArmName, batch: int, pages: dict[str, dict[str, Any]]) -> None:
        record = {"step": step, "arm": arm, "batch": batch, "pages": pages}
        self._journal.append(record)
        self._take(record)

    def _take(self, record: dict[str, Any]) -> None:
        target = self.texts if record["step"] == "text" else self.divergences
        target.update({(record["arm"], page): values for page, values in record["pages"].items()})
        self._done.add((record["step"], record["arm"], record["batch"]))


def _transcribe(
    document: DocumentModel,
    arm: Arm,
    batch: Sequence[Page],
    number: int,
    found: _Found,
    max_new_tokens: int,
    advance: Advance,
) -> None:
    if found.has_step("text", arm.name, number):
        return
    inputs = [PageInput(page_image(page), page.kind, None, page.id) for page in batch]
    with applied(document.model, arm):
        outputs = document.transcribe(inputs, max_new_tokens, len(inputs))
    values = {
        page.id: {"text": output.text, "num_tokens": output.num_tokens, "finished": output.finished}
        for page, output in zip(batch, outputs, strict=True)
    }
    found.add("text", arm.name, number, values)
    advance(len(batch))


def _measure(
    document: DocumentModel,
    arm: Arm,
    batch: Sequence[Page],
    number: int,
    truths: dict[str, str],
    found: _Found,
    advance: Advance,
) -> None:
    if found.has_step("divergence", arm.name, number):
        return
    values = {}
    for part in _parts(document, batch, truths):
        encoded = document.encode(part)
        with torch.no_grad():
            reference = document.logits(encoded)[encoded.answer_mask]
            with applied(document.model, arm):
                other = document.logits(encoded)[encoded.answer_mask]
        counts = encoded.num_answer_tokens.tolist()
        sums = kl_from_logits(reference, other).double().split(counts)
        for page, count, kl in zip(part, counts, sums, strict=True):
            values[page.id] = {"kl_sum": _finite_sum(kl), "num_kl_tokens": count}
    found.add("divergence", arm.name, number, values)
    advance(len(batch))


def _parts(
    document: DocumentModel, batch: Sequence[Page], truths: dict[str, str]
) -> Iterator[list[PageInput]]:
    """A batch in parts whose logits fit the memory set aside for them."""
    inputs = [_with_truth(document, page, truths[page.id]) for page in batch]
    encoder = document.encoder
    lengths = [encoder.num_prompt_tokens(page) + len(encoder.answer_ids(page.text or "")) for page in inputs]
    vocabulary = document.model.get_input_embeddings().num_embeddings
    size = max(1, MAX_LOGITS // (max(lengths) * vocabulary))
    for first in range(0, len(inputs), size):
        yield inputs[first : first + size]


def _with_truth(document: DocumentModel, page: Page, truth: str) -> PageInput:
    image = page_image(page)
    if page.truth_source == "model":
        # A text that the token limit cut off may not fit any more once the end token is added.
        prompt = document.encoder.num_prompt_tokens(PageInput(image, page.kind, None, page.id))
        while truth and prompt + len(document.encoder.answer_ids(truth)) > document.encoder.max_positions:
            truth = truth[:-1]
    return PageInput(image, page.kind, truth, page.id)


def _finite_sum(kl: Tensor) -> float | None:
    return float(kl.sum()) if bool(torch.isfinite(kl).all()) else None


def _truth(page: Page, transcription: str) -> str:
    if page.truth_source == "model":
        return transcription
    assert page.text is not None, f"page {page.id} has ground truth without text"
    return page.text


def _collect(page: Page, truth: str, arms: Sequence[ArmName], found: _Found) -> PageTranscripts:
    tokens = found.divergences[arms[1], page.id]["num_kl_tokens"]
    outputs = {}
    for name in arms:
        divergence = found.divergences.get((name, page.id), {"kl_sum": 0.0, "num_kl_tokens": tokens})
        outputs[name] = ArmTranscript(**found.texts[name, page.id], **divergence)
    return PageTranscripts(
        page=page.id,
        kind=page.kind,
        document=page.document,
        truth=truth,
        truth_source=page.truth_source,
        arms=outputs,
    )
