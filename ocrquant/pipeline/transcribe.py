"""The first stage: which pages a run uses, and the bf16 model's own transcription where a page has no truth.

Knows pages and the model's greedy output. Transcriptions are kept chunk by chunk, so a kill costs one chunk.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ocrquant.adapters import PageInput
from ocrquant.artifacts import Journal, PageSet
from ocrquant.pages import Page, page_image, to_record
from ocrquant.pipeline.context import Context

CHUNK_PAGES = 64
"""Pages whose images are in memory at once; batches of similar length are formed among them."""


def write_pages(context: Context, inputs: Mapping[str, str]) -> PageSet:
    """Writes ``pages.json``.

    Args:
        context: The run.
        inputs: SHA-256 of everything that the stage is made from, by name.

    Raises:
        PagesError, SplitError, ImageError: See `ocrquant.pages.load_pages`.
    """
    partial = context.run.partial(PageSet.STAGE, inputs)
    pages = context.source_pages
    if context.needs_transcription:
        texts = _transcripts(context, pages, partial.journal("transcripts"))
        pages = [replace(page, text=texts[page.id]) for page in pages]
    records = [to_record(page, context.recipe.pages.source) for page in pages]
    artifact = PageSet(inputs=dict(inputs), source=context.recipe.pages.source, pages=records)
    context.run.save(artifact)
    partial.discard()
    return artifact


def _transcripts(context: Context, pages: list[Page], journal: Journal) -> dict[str, str]:
    """Text by page id.

    Batches are fixed by all pages, so no text depends on where an earlier run was stopped.
    """
    section, document = context.recipe.evaluate, context.document()
    texts = {str(record["page"]): str(record["text"]) for record in journal.read()}
    for first in range(0, len(pages), CHUNK_PAGES):
        chunk = pages[first : first + CHUNK_PAGES]
        if all(page.id in texts for page in chunk):
            continue
        asked = [PageInput(page_image(page), page.kind, None, page.id) for page in chunk]
        answers = document.transcribe(asked, section.max_new_tokens, section.batch_size, stop_at_loop=True)
        for page, answer in zip(chunk, answers, strict=True):
            if page.id not in texts:
                journal.append({"page": page.id, "text": answer.text})
                texts[page.id] = answer.text
    return texts
