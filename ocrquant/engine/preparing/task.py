"""A page that is to be read, and what preparing makes of it.

Opens and encodes; knows no engine. Needs NumPy, Pillow and PDFium only: it runs in worker processes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from PIL import Image

from ocrquant.errors import ImageError, OcrQuantError
from ocrquant.models.processing.pages import EncodedPage, PageEncoder, PromptTokens
from ocrquant.pages.image import check_size, ref_image
from ocrquant.pages.page import MAX_PIXELS, ImageRef
from ocrquant.pages.pixels import decode_image

__all__ = ["PageTask", "PreparedPage", "prepare"]


@dataclass(frozen=True, slots=True, eq=False)
class PageTask:
    """A page that is to be read.

    Attributes:
        id: What results and error messages call it; unique among the pages of one call.
        image: Where it lies, an encoded image, or the picture itself.
        kind: ``line``, ``block`` or ``page``; or an instruction in tokens.
        max_pixels: Largest page that is opened, in pixels; a picture is open already.
    """

    id: str
    image: ImageRef | Image.Image | bytes
    kind: str | PromptTokens = "page"
    max_pixels: int = MAX_PIXELS


@dataclass(frozen=True, slots=True, eq=False)
class PreparedPage:
    """A page that is ready for the engine, or why it is not.

    Attributes:
        encoded: The page; None where it failed.
        error: Why it failed; None otherwise.
        seconds: Spent on opening and encoding.
    """

    encoded: EncodedPage | None
    error: OcrQuantError | None
    seconds: float


def prepare(encoder: PageEncoder, task: PageTask) -> PreparedPage:
    """Opens and encodes a page; whatever is wrong with it is its own error and nobody else's."""
    began = time.perf_counter()
    encoded, error = None, None
    try:
        encoded = encoder.encode(_open(task), task.kind)
    except OcrQuantError as refused:
        error = refused
    except Exception as failed:
        # Nothing that one file does to a library may end the others.
        given = f"{type(failed).__name__}: {failed}"
        fix = "replace the file or remove it"
        error = ImageError(f"page {task.id}", expected="a readable image", given=given, fix=fix)
    return PreparedPage(encoded, error, time.perf_counter() - began)


def _open(task: PageTask) -> Image.Image:
    if isinstance(task.image, Image.Image):
        return task.image
    if isinstance(task.image, bytes):
        return decode_image(task.image, task.id)
    check_size(task.image, task.id, task.max_pixels)
    return ref_image(task.image, task.id)
