"""Pixels of a page, from wherever they lie.

Knows the kinds of storage. Knows no digest, truth or split, and loads pyarrow only for a page in a table, so
that processes that do nothing but open pages start quickly and stay small.
"""

from __future__ import annotations

from PIL import Image

from ocrquant.pages.page import ImageRef
from ocrquant.pages.pdf import pdf_page_size, render_pdf_page
from ocrquant.pages.pixels import check_pixels, decode_image, image_size

__all__ = ["check_size", "ref_image", "ref_size"]


def ref_size(ref: ImageRef, name: str) -> tuple[int, int]:
    """Width and height in pixels that `ref_image` gives, from headers alone; errors as there."""
    if ref.storage == "pdf":
        return pdf_page_size(ref.path, ref.index, _dpi(ref))
    if ref.storage == "image":
        return image_size(ref.path, name, ref.index)
    return image_size(_cell(ref, name), name)


def ref_image(ref: ImageRef, name: str) -> Image.Image:
    """Upright 8-bit RGB.

    Args:
        ref: Where it lies.
        name: What an error message calls it.

    Raises:
        ImageError, EncryptedPdfError: The file is unreadable, or its pixels are damaged behind a good header.
        PageSizeError: More pixels than Pillow opens at all.
        PagesError: The table that holds it is unreadable.
    """
    if ref.storage == "pdf":
        return render_pdf_page(ref.path, ref.index, _dpi(ref))
    if ref.storage == "image":
        return decode_image(ref.path, name, ref.index)
    return decode_image(_cell(ref, name), name)


def check_size(ref: ImageRef, name: str, max_pixels: int) -> tuple[int, int]:
    """Width and height, if they are not too many pixels; no pixel is decoded.

    Raises:
        PageSizeError: They are.
        ImageError, EncryptedPdfError, PagesError: See `ref_image`.
    """
    width, height = ref_size(ref, name)
    fix = "lower the dpi or raise max_pixels" if ref.storage == "pdf" else ""
    check_pixels(f"page {name}", width, height, max_pixels, fix)
    return width, height


def _cell(ref: ImageRef, name: str) -> bytes:
    from ocrquant.pages.tables import read_cell  # loads pyarrow

    return read_cell(ref, name)


def _dpi(ref: ImageRef) -> int:
    assert ref.dpi is not None, "PDF pages state a resolution"
    return ref.dpi
