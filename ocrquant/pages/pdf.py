"""PDF files as pages of pixels, through PDFium.

Knows opening, sizes and rendering. Knows nothing of the text inside a PDF; `ocrquant.pages.make` reads that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import RLock

import pypdfium2 as pdfium
from PIL import Image
from pypdfium2 import raw

from ocrquant.errors import EncryptedPdfError, ImageError

__all__ = ["POINTS_PER_INCH", "num_pdf_pages", "open_pdf", "pdf_page_size", "render_pdf_page"]

POINTS_PER_INCH = 72.0

# PDFium keeps global state and is not safe to enter from two threads.
_PDFIUM = RLock()


@contextmanager
def open_pdf(path: Path) -> Iterator[pdfium.PdfDocument]:
    """An open PDF; no other thread may use PDFium meanwhile.

    Raises:
        EncryptedPdfError: It needs a password.
        ImageError: It is not a PDF, is damaged, or PDFium fails inside the block.
    """
    with _PDFIUM:
        try:
            document = pdfium.PdfDocument(path)
        except pdfium.PdfiumError as error:
            if error.err_code == raw.FPDF_ERR_PASSWORD:
                raise EncryptedPdfError(
                    path,
                    expected="a PDF without a password",
                    given="an encrypted one",
                    fix="decrypt it (qpdf --decrypt --password=... IN OUT) or remove it",
                ) from None
            raise _unreadable(path, error) from None
        except OSError as error:
            raise _unreadable(path, error) from None
        try:
            if document.get_formtype() != raw.FORMTYPE_NONE:
                document.init_forms()
            yield document
        except pdfium.PdfiumError as error:
            raise _unreadable(path, error) from None
        finally:
            document.close()


def num_pdf_pages(path: Path) -> int:
    """Pages of a PDF; errors as `open_pdf`."""
    with open_pdf(path) as document:
        return len(document)


def pdf_page_size(path: Path, index: int, dpi: int) -> tuple[int, int]:
    """Width and height in pixels that `render_pdf_page` gives, without rendering; errors as `open_pdf`."""
    with open_pdf(path) as document:
        width, height = document.get_page_size(index)
    zoom = dpi / POINTS_PER_INCH
    return math.ceil(width * zoom), math.ceil(height * zoom)


def render_pdf_page(path: Path, index: int, dpi: int) -> Image.Image:
    """A page as 8-bit RGB, with annotations and filled form fields; errors as `open_pdf`."""
    with open_pdf(path) as document:
        page = document[index]
        bitmap = page.render(scale=dpi / POINTS_PER_INCH, rev_byteorder=True)
        image: Image.Image = bitmap.to_pil().convert("RGB")
    return image


def _unreadable(path: Path, error: Exception) -> ImageError:
    return ImageError(path, expected="a readable PDF", given=error, fix="replace the file or remove it")
