"""Which pages go through the model together, and which of them judge instead of teach.

Everything here depends on the pages alone, so a stage that goes on after a kill sees the same batches. Knows
pages; knows no activation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from ocrquant.adapters.model import DocumentModel, Encoded, PageInput
from ocrquant.errors import PagesError, SplitError
from ocrquant.pages import Page, page_image

__all__ = ["encode_batch", "plan_batches", "split_held_back"]


def plan_batches(pages: Sequence[Page], batch_size: int) -> list[list[Page]]:
    """Batches of pages of similar size, smallest first, so that little of a batch is padding."""
    order = sorted(pages, key=lambda page: (page.width * page.height, page.id))
    return [order[first : first + batch_size] for first in range(0, len(order), batch_size)]


def split_held_back(pages: Sequence[Page], num_held_back_pages: int) -> tuple[list[Page], list[Page]]:
    """Pages that steps are fitted on, and pages that decide whether a step is kept.

    The choice follows a hash of the names, so that pages added later move few others.

    Raises:
        SplitError: Nothing would be left to fit on.
    """
    if num_held_back_pages >= len(pages):
        raise SplitError(
            "calibration pages",
            expected=f"more than weights.num_held_back_pages ({num_held_back_pages})",
            given=len(pages),
            fix="hold fewer pages back or take more calibration pages",
        )
    order = sorted(pages, key=lambda page: (hashlib.sha256(page.id.encode()).digest(), page.id))
    return order[num_held_back_pages:], order[:num_held_back_pages]


def encode_batch(document: DocumentModel, pages: Sequence[Page]) -> Encoded:
    """The tensors of a batch; images are decoded here.

    Raises:
        PagesError: A page has no text: neither truth nor the model's own transcription.
        ImageError: An image cannot be read.
        PageSizeError: A page exceeds the context of the model.
    """
    return document.encode([_input(page) for page in pages])


def _input(page: Page) -> PageInput:
    if page.text is None:
        fix = "run the stage `pages`, which transcribes pages without a truth"
        raise PagesError(f"page {page.id}", expected="a text", given="none", fix=fix)
    return PageInput(page_image(page), page.kind, page.text, page.id)
