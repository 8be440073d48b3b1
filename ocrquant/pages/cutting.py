"""Line and block crops with exact text out of one page of a born-digital PDF.

Knows the order of the checks and how blocks are put together. Knows nothing of files but the PDF that it
reads.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pypdfium2 as pdfium
from PIL import Image

from ocrquant.errors import PageSizeError
from ocrquant.pages.glyphs import Glyph, hide_text, read_glyphs
from ocrquant.pages.ink import PixelBox, RenderedPage
from ocrquant.pages.lines import (
    MAX_BLOCK_LINES,
    MIN_BLOCK_LINES,
    Line,
    continues_block,
    cut_lines,
    text_fault,
)
from ocrquant.pages.page import PageKind
from ocrquant.pages.pdf import POINTS_PER_INCH, open_pdf, pdf_page_size
from ocrquant.pages.pixels import check_pixels

__all__ = ["MIN_EM_PX", "Crop", "CutPage", "cut_page"]

MIN_EM_PX = 10


@dataclass(frozen=True, slots=True)
class Crop:
    """A piece of a page that shows its text and nothing else.

    Attributes:
        kind: Line or block.
        text: Truth; lines of a block separated by a newline.
        box: Where it lies on the rendered page.
        image: Its pixels.
    """

    kind: PageKind
    text: str
    box: PixelBox
    image: Image.Image


@dataclass(slots=True)
class CutPage:
    """Crops of a page, and how many lines, blocks or whole pages were dropped for which reason."""

    lines: list[Crop] = field(default_factory=list)
    blocks: list[Crop] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)


def cut_page(path: Path, index: int, dpi: int, rng: random.Random, max_pixels: int) -> CutPage:
    """All trustworthy line crops of a page and a partition of them into blocks.

    Args:
        path: A PDF.
        index: Page, counted from 0.
        dpi: Resolution of the crops.
        rng: Chooses how many lines each block has.
        max_pixels: Larger pages are dropped.

    Raises:
        ImageError, EncryptedPdfError: The PDF cannot be read.
    """
    cut = CutPage()
    with open_pdf(path) as document:
        page = document[index]
        try:
            check_pixels(str(path), *pdf_page_size(path, index, dpi), max_pixels)
        except PageSizeError:
            cut.dropped["page too large"] += 1
            return cut
        if page.get_rotation():
            cut.dropped["page shown rotated"] += 1
            return cut
        glyphs = read_glyphs(page)
        rendered = _render(page, glyphs, dpi / POINTS_PER_INCH)
    kept: list[Line | None] = []
    for line in cut_lines(glyphs):
        reason = text_fault(line, MIN_EM_PX * POINTS_PER_INCH / dpi)
        crop = None if reason else _crop("line", [line], rendered)
        if isinstance(crop, Crop):
            cut.lines.append(crop)
        else:
            cut.dropped[f"line: {reason or crop}"] += 1
        kept.append(line if isinstance(crop, Crop) else None)
    for lines in _blocks(kept, rng):
        crop = _crop("block", lines, rendered)
        if isinstance(crop, Crop):
            cut.blocks.append(crop)
        else:
            cut.dropped[f"block: {crop}"] += 1
    return cut


def _render(page: pdfium.PdfPage, glyphs: list[Glyph], zoom: float) -> RenderedPage:
    image = page.render(scale=zoom, rev_byteorder=True).to_pil().convert("RGB")
    hide_text(page)
    background = page.render(scale=zoom, rev_byteorder=True).to_pil().convert("L")
    left, _, _, top = page.get_bbox()
    return RenderedPage(image, background, (left, top), zoom, glyphs)


def _crop(kind: PageKind, lines: list[Line], rendered: RenderedPage) -> Crop | str:
    """The crop of some lines, or why there is none."""
    box = rendered.crop_box([line.box for line in lines])
    own = tuple(glyph for line in lines for glyph in line.glyphs)
    reason = rendered.fault(box, own)
    if reason:
        return reason
    return Crop(kind, "\n".join(line.text for line in lines), box, rendered.cut(box))


def _blocks(kept: list[Line | None], rng: random.Random) -> list[list[Line]]:
    """Runs of lines that follow one another on the page with nothing dropped between, cut into blocks."""
    runs: list[list[Line]] = [[]]
    for line in kept:
        if line is not None and runs[-1] and continues_block(runs[-1][-1], line):
            runs[-1].append(line)
        else:
            runs.append([line] if line is not None else [])
    blocks = []
    for run in runs:
        rest = run
        while len(rest) >= MIN_BLOCK_LINES:
            size = rng.randint(MIN_BLOCK_LINES, min(MAX_BLOCK_LINES, len(rest)))
            blocks.append(rest[:size])
            rest = rest[size:]
    return blocks
