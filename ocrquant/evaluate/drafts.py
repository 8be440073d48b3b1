"""Held-out pages once more through the plan with a drafter, and how far its guesses went.

The same engine, batches and lengths as for the plan without drafts, so that texts can be held against each
other. Each finished batch is on disk before the next begins. Knows engines and counts. Does not know how a
drafter is made, nor how the result is shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch

from ocrquant.artifacts import (
    CheckpointRecord,
    DraftMetrics,
    DraftReport,
    Drafts,
    Interval,
    Journal,
    PageDrafts,
    RunFolder,
    Transcripts,
    sha256_data,
)
from ocrquant.artifacts.page_set import PageKind
from ocrquant.calibrate.batching import plan_batches
from ocrquant.engine.drafter_folder import DrafterFolder
from ocrquant.engine.loading import Runtime, RuntimeSettings, load_runtime
from ocrquant.engine.pages import page_prompt
from ocrquant.engine.request import DraftCounts
from ocrquant.engine.sampling import SamplingParams
from ocrquant.evaluate.arms import environment_digest
from ocrquant.evaluate.truth import longest_sequence
from ocrquant.metrics.bootstrap import paired_bootstrap
from ocrquant.models.processing import open_processor
from ocrquant.pages import Page, page_image
from ocrquant.progress import progress_bar
from ocrquant.recipe.sections import EvaluateSection

__all__ = ["DraftedModel", "measure_drafts", "read_with_drafts"]

PARTIAL = "drafts"


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftedModel:
    """The exported plan with a drafter, and how it is run.

    Attributes:
        source: Folder of the unquantized model.
        drafter: Folder of the drafter.
        device: Where both run.
        prompts: Instructions of the recipe for some kinds of page.
    """

    source: Path
    drafter: Path
    device: torch.device
    prompts: Mapping[str, str]


def read_with_drafts(
    run: RunFolder,
    model: DraftedModel,
    pages: Sequence[Page],
    section: EvaluateSection,
    transcripts: Transcripts,
) -> Drafts:
    """Reads the pages, or what an earlier evaluation of the same plan and drafter read.

    Args:
        run: The run folder with its checkpoint and transcripts.
        model: The plan with its drafter.
        pages: The held-out pages.
        section: `evaluate` of the recipe.
        transcripts: What the plan reads without drafts; saved already.

    Raises:
        ModelError: The runtime does not run the model, or the drafter is missing, damaged or another's.
        ImageError: An image cannot be read.
        OutputError: The run folder is not writable or the disk is full.
    """
    config = DrafterFolder(model.drafter).config
    inputs = {
        "transcripts": run.digest(Transcripts),
        "drafter": run.digests.folder(model.drafter),
        "settings": sha256_data([section.max_new_tokens, section.batch_size, config.block_size]),
    }
    if run.is_current(Drafts, inputs):
        return run.load(Drafts)
    tokens = open_processor(model.source, model.prompts)
    batch_size = min(section.batch_size, len(pages))
    settings = RuntimeSettings(
        max_requests=batch_size,
        max_length=longest_sequence(tokens, pages, section.max_new_tokens),
        device=str(model.device),
        queue_limit=batch_size,
        prompts=model.prompts,
        speculation="drafter",
        drafter=model.drafter,
        window=config.block_size,
    )
    partial = run.partial(PARTIAL, {**inputs, "environment": environment_digest(settings)})
    checkpoint = run.path / run.load(CheckpointRecord).folder
    found = _read_all(checkpoint, settings, pages, section, partial.journal("pages"))
    plain = {page.page: page.arms["plan"].text for page in transcripts.pages}
    drafts = Drafts(
        inputs=inputs,
        design="dflash2" if config.is_second else "dflash",
        block_size=config.block_size,
        pages=[_page(page, found[page.id], plain[page.id]) for page in pages],
    )
    run.save(drafts)
    partial.discard()
    return drafts


def measure_drafts(drafts: Drafts, name: str, *, num_resamples: int, seed: int) -> DraftReport:
    """Sums up what was read with drafts, over all pages and for each kind.

    Args:
        drafts: Counts by page.
        name: The drafter as the recipe names it.
        num_resamples: Resamples of the documents behind each interval.
        seed: Seed of the resamples.
    """
    found = {page.kind for page in drafts.pages}
    kinds: list[PageKind] = [kind for kind in get_args(PageKind) if kind in found]

    def metrics(kind: PageKind | None = None) -> DraftMetrics:
        pages = [page for page in drafts.pages if kind is None or page.kind == kind]
        return DraftMetrics(
            num_pages=len(pages),
            num_documents=len({page.document for page in pages}),
            num_tokens=sum(page.num_tokens for page in pages),
            num_windows=sum(page.num_windows for page in pages),
            num_same=sum(page.other_text is None for page in pages),
            length=_acceptance_length(pages, num_resamples, seed),
            survival=_survival(pages),
        )

    return DraftReport(
        drafter=name,
        design=drafts.design,
        block_size=drafts.block_size,
        overall=metrics(),
        by_kind={kind: metrics(kind) for kind in kinds},
        other_pages=[page.page for page in drafts.pages if page.other_text is not None],
    )


def _read_all(
    checkpoint: Path,
    settings: RuntimeSettings,
    pages: Sequence[Page],
    section: EvaluateSection,
    journal: Journal,
) -> dict[str, dict[str, Any]]:
    """Text and counts of all pages; batches that the journal holds are not read again."""
    found = {page: answer for record in journal.read() for page, answer in record.items()}
    batches = plan_batches(pages, section.batch_size)
    todo = [batch for batch in batches if any(page.id not in found for page in batch)]
    if not todo:
        return found
    with progress_bar("evaluate with drafts", len(pages), "pages", done=len(found)) as advance:
        runtime = load_runtime(checkpoint, settings)
        for batch in todo:
            answers = _read(runtime, batch, section.max_new_tokens)
            journal.append(answers)
            found.update(answers)
            advance(len(batch))
    return found


def _read(runtime: Runtime, pages: Sequence[Page], max_new_tokens: int) -> dict[str, dict[str, Any]]:
    """Text and counts of a batch, by page."""
    sampling = SamplingParams(max_tokens=max_new_tokens)
    for page in pages:
        encoded = runtime.processor.encode(page_image(page), page.kind)
        runtime.engine.submit(page_prompt(encoded), sampling, page.id)
    return {
        name: {
            "text": result.text,
            "num_tokens": result.num_generated,
            "num_windows": result.drafts.num_windows,
            "num_guessed": result.drafts.num_guessed,
            "num_accepted": result.drafts.num_accepted,
            "tried": result.drafts.tried,
            "survived": result.drafts.survived,
        }
        for name, result in runtime.engine.run_until_done().items()
    }


def _page(page: Page, answer: Mapping[str, Any], plain: str) -> PageDrafts:
    counts = {name: value for name, value in answer.items() if name != "text"}
    return PageDrafts(
        page=page.id,
        kind=page.kind,
        document=page.document,
        other_text=None if answer["text"] == plain else answer["text"],
        **counts,
    )


def _survival(pages: Sequence[PageDrafts]) -> list[float]:
    """Chances that the first 1, 2, ... guesses are all accepted."""
    counts = DraftCounts()
    for page in pages:
        counts.merge(DraftCounts(tried=page.tried, survived=page.survived))
    return counts.survival


def _acceptance_length(pages: Sequence[PageDrafts], num_resamples: int, seed: int) -> Interval | None:
    """Tokens that a verification emits, with documents resampled."""
    windows = [page.num_windows for page in pages]
    if not any(windows):
        return None
    documents = [page.document for page in pages]
    found = paired_bootstrap(
        [page.num_emitted for page in pages],
        [0] * len(pages),
        windows,
        clusters=documents,
        num_resamples=num_resamples,
        seed=seed,
    )
    if len(set(documents)) < 2:
        return Interval(estimate=found.estimate, low=None, high=None)
    return Interval(estimate=found.estimate, low=found.low, high=found.high)
