"""Which pages are scored, and which of them go through the model together.

Everything here depends on the pages and the model's tokens alone, so that a stage that goes on after a kill
sees the same batches. Knows pages; knows no score.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from PIL import Image

from ocrquant.adapters.model import DocumentModel, Encoded, PageInput
from ocrquant.errors import PagesError
from ocrquant.pages import Page, page_image

__all__ = ["choose_pages", "encode", "num_positions", "plan_batches"]

MAX_PADDING = 1.5
"""The longest sequence of a batch is at most so many times the shortest: padding costs as much as tokens."""

MIN_PAGES = 2


def choose_pages(pages: Sequence[Page], num_pages: int | None) -> list[Page]:
    """Pages to score on, by a hash of their names: pages added later move few others.

    It is the order in which pages are held back from the rounding of the weights, so that a small choice
    leans on pages that no weight was fitted to.

    Raises:
        PagesError: Fewer than two: the noise of a score could not be told.
    """
    order = sorted(pages, key=lambda page: (hashlib.sha256(page.id.encode()).digest(), page.id))
    chosen = order[:num_pages]
    if len(chosen) < MIN_PAGES:
        raise PagesError(
            "pages to score on",
            expected=f"at least {MIN_PAGES}, whose scatter is the noise of a score",
            given=len(chosen),
            fix="take more calibration pages, or raise sensitivity.num_pages",
        )
    return chosen


def plan_batches(document: DocumentModel, pages: Sequence[Page], batch_size: int) -> list[list[Page]]:
    """Batches of pages of similar length with their answers, shortest first.

    Raises:
        PagesError: A page has no text.
        PageSizeError: A page exceeds the context of the model.
    """
    lengths = {page.id: _num_tokens(document, page) for page in pages}
    batches: list[list[Page]] = []
    for page in sorted(pages, key=lambda page: (lengths[page.id], page.id)):
        batch = batches[-1] if batches else []
        if batch and len(batch) < batch_size and lengths[page.id] <= MAX_PADDING * lengths[batch[0].id]:
            batch.append(page)
        else:
            batches.append([page])
    return batches


def num_positions(document: DocumentModel, batch: Sequence[Page]) -> int:
    """Positions of a batch, padding counted."""
    return len(batch) * max(_num_tokens(document, page) for page in batch)


def encode(document: DocumentModel, pages: Sequence[Page]) -> Encoded:
    """The tensors of a batch; images are decoded here.

    Raises:
        ImageError: An image cannot be read.
        PageSizeError: A page exceeds the context of the model.
    """
    return document.encode([PageInput(page_image(page), page.kind, _text(page), page.id) for page in pages])


def _num_tokens(document: DocumentModel, page: Page) -> int:
    # Only the size of the image matters, and the page knows it without decoding.
    blank = Image.new("1", (page.width, page.height))
    text = _text(page)
    prompt = document.encoder.num_prompt_tokens(PageInput(blank, page.kind, text, page.id))
    return prompt + len(document.encoder.answer_ids(text))


def _text(page: Page) -> str:
    if page.text is None:
        fix = "run the stage `pages`, which transcribes pages without a truth"
        raise PagesError(f"page {page.id}", expected="a text", given="none", fix=fix)
    return page.text
