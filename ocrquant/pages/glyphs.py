"""The characters of a PDF page: what each stands for, where it lies, whether it can be seen.

Knows PDFium's text interface. Knows nothing of lines or pixels. Coordinates are in PDF points, y upwards.
"""

from __future__ import annotations

import ctypes
import math
import unicodedata
from dataclasses import dataclass, replace

import pypdfium2 as pdfium
from pypdfium2 import raw

__all__ = ["Box", "Glyph", "hide_text", "read_glyphs"]

_HIDDEN_MODES = frozenset({raw.FPDF_TEXTRENDERMODE_INVISIBLE, raw.FPDF_TEXTRENDERMODE_CLIP})
# Form XObjects may nest; deeper text would stay visible and then count as foreign ink, which is the safe
# side.
_MAX_NESTING = 15
# Controls, private use, unassigned, surrogates and invisible format characters stand for nothing on paper.
_NOT_ON_PAPER = frozenset({"Cc", "Cf", "Cn", "Co", "Cs"})
_MAX_SLOPE = 0.01


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle with ``left <= right`` and ``bottom <= top``."""

    left: float
    bottom: float
    right: float
    top: float

    @staticmethod
    def around(boxes: list[Box]) -> Box:
        """The smallest box around some; there has to be at least one."""
        return Box(
            min(box.left for box in boxes),
            min(box.bottom for box in boxes),
            max(box.right for box in boxes),
            max(box.top for box in boxes),
        )


@dataclass(frozen=True, slots=True)
class Glyph:
    """One drawn character of the text layer, or a space or line end between two.

    Attributes:
        index: Its number on the page.
        char: What it stands for according to the PDF; several letters for a ligature.
        box: Its outline.
        left: Where its advance starts.
        right: Where its advance ends.
        baseline: Height of its origin.
        em: Font size as it appears.
        font: Tells one text object's font and size from another's on the same page.
        text_object: Tells one text object of the page from another.
        is_mapped: The PDF says for certain what it stands for, and that is something which shows on paper.
        is_upright: Neither rotated nor mirrored; slanted counts as upright.
        is_hidden: Drawn in an invisible mode or fully transparent.
        is_generated: PDFium inferred it from the layout; nothing is drawn.
    """

    index: int
    char: str
    box: Box
    left: float
    right: float
    baseline: float
    em: float
    font: str
    text_object: int
    is_mapped: bool
    is_upright: bool
    is_hidden: bool
    is_generated: bool

    @property
    def is_space(self) -> bool:
        """Whether it stands for white space of any kind."""
        return self.char.isspace()


def read_glyphs(page: pdfium.PdfPage) -> list[Glyph]:
    """All characters of a page in the order of the PDF, with the spaces and line ends that PDFium infers.

    Raises:
        PdfiumError: The text cannot be loaded.
    """
    text_page = page.get_textpage()
    reader = _Reader(text_page)
    glyphs: list[Glyph] = []
    for index in range(raw.FPDFText_CountChars(text_page)):
        glyph = reader.glyph(index)
        if glyphs and _is_same_ligature(glyphs[-1], glyph):
            glyphs[-1] = replace(
                glyphs[-1],
                char=glyphs[-1].char + glyph.char,
                is_mapped=glyphs[-1].is_mapped and glyph.is_mapped,
            )
        else:
            glyphs.append(glyph)
    return glyphs


def hide_text(page: pdfium.PdfPage) -> int:
    """Make all text of an open page invisible in memory; what is rendered then is everything but text.

    Returns:
        How many text objects there were.
    """
    count = 0
    for item in page.get_objects(filter=[raw.FPDF_PAGEOBJ_TEXT], max_depth=_MAX_NESTING):
        raw.FPDFTextObj_SetTextRenderMode(item.raw, raw.FPDF_TEXTRENDERMODE_INVISIBLE)
        count += 1
    return count


def _is_same_ligature(glyph: Glyph, following: Glyph) -> bool:
    """Whether PDFium spread one drawn glyph over several characters, all with its outline.

    A letter printed twice for boldness comes from two text objects.
    """
    return (
        not (glyph.is_space or following.is_space or following.is_generated)
        and glyph.text_object == following.text_object
        and glyph.box == following.box
        and glyph.left == following.left
    )


class _Reader:
    """Reads one character after another into buffers that are allocated once."""

    def __init__(self, text_page: pdfium.PdfTextPage) -> None:
        self._text_page = text_page
        self._numbers = [ctypes.c_double() for _ in range(4)]
        self._matrix = raw.FS_MATRIX()
        self._loose = raw.FS_RECTF()
        self._channels = [ctypes.c_uint() for _ in range(4)]
        self._objects: dict[int, tuple[int, str, bool]] = {}

    def glyph(self, index: int) -> Glyph:
        text_page, numbers, matrix = self._text_page, self._numbers, self._matrix
        left, right, bottom, top = numbers
        raw.FPDFText_GetCharBox(text_page, index, left, right, bottom, top)
        box = Box(left.value, bottom.value, right.value, top.value)
        raw.FPDFText_GetCharOrigin(text_page, index, left, bottom)
        origin, baseline = left.value, bottom.value
        raw.FPDFText_GetMatrix(text_page, index, matrix)
        char = self._char(index)
        is_generated = raw.FPDFText_IsGenerated(text_page, index) == 1
        em = raw.FPDFText_GetFontSize(text_page, index) * math.hypot(matrix.c, matrix.d)
        text_object, font, is_hidden = (0, "", False) if is_generated else self._object(index)
        is_known = raw.FPDFText_HasUnicodeMapError(text_page, index) == 0 and char != "\ufffd"
        return Glyph(
            index=index,
            char=char,
            box=box,
            left=origin,
            right=origin + self._advance(index),
            baseline=baseline,
            em=em,
            font=f"{font}/{em:.2f}",
            text_object=text_object,
            is_mapped=is_known and (char.isspace() or unicodedata.category(char) not in _NOT_ON_PAPER),
            is_upright=matrix.a > 0 and matrix.d > 0 and abs(matrix.b) < _MAX_SLOPE * matrix.a,
            is_hidden=is_hidden or (not is_generated and self._is_transparent(index)),
            is_generated=is_generated,
        )

    def _advance(self, index: int) -> float:
        """Width of a character without letter or word spacing, in points.

        The loose box is the one around the character's cell, which a slanting matrix turns into a
        parallelogram.
        """
        loose = self._loose
        raw.FPDFText_GetLooseCharBox(self._text_page, index, loose)
        slant = abs(self._matrix.c / self._matrix.d) if self._matrix.d else 0.0
        return float(loose.right - loose.left - slant * abs(loose.top - loose.bottom))

    def _char(self, index: int) -> str:
        # PDFium puts U+0002 for a hyphen at the end of a line and flags it; the glyph is a hyphen.
        if raw.FPDFText_IsHyphen(self._text_page, index) == 1:
            return "-"
        return chr(raw.FPDFText_GetUnicode(self._text_page, index))

    def _object(self, index: int) -> tuple[int, str, bool]:
        """Text object, its font's name, and whether it is drawn in an invisible mode."""
        handle = raw.FPDFText_GetTextObject(self._text_page, index)
        address = ctypes.cast(handle, ctypes.c_void_p).value or 0
        if address not in self._objects:
            buffer = ctypes.create_string_buffer(256)
            raw.FPDFText_GetFontInfo(self._text_page, index, buffer, len(buffer), None)
            is_hidden = raw.FPDFTextObj_GetTextRenderMode(handle) in _HIDDEN_MODES
            name = buffer.value.decode("utf-8", "replace")
            self._objects[address] = address, name, is_hidden
        return self._objects[address]

    def _is_transparent(self, index: int) -> bool:
        known = raw.FPDFText_GetFillColor(self._text_page, index, *self._channels)
        return bool(known) and self._channels[3].value == 0
