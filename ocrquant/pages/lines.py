"""Visual lines and blocks out of a page's characters, and why a line's text cannot be trusted.

Knows geometry in PDF points and what letters look like. Knows nothing of pixels: see `ocrquant.pages.ink`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from ocrquant.pages.glyphs import Box, Glyph

__all__ = ["MAX_BLOCK_LINES", "MIN_BLOCK_LINES", "Line", "continues_block", "cut_lines", "text_fault"]

MIN_BLOCK_LINES = 2
MAX_BLOCK_LINES = 8
_MIN_CHARACTERS = 3

# All lengths are shares of an em. Advances of 158,000 character pairs in eight manuals and vignettes:
# inside a word 99.9 % of the gaps are below 0.13, at a space 99.9 % are above 0.16; gaps of columns start
# near 2.
_MAX_GAP_IN_WORD = 0.15
_MIN_GAP_AT_SPACE = 0.12
_MAX_GAP_IN_LINE = 2.0
_MAX_BASELINE_STEP = 0.6
_MAX_RAISE = 0.06
# Kerning takes a quotation mark up to two thirds into a full stop; printing over takes all.
_MAX_OVERLAP = 0.75
_MIN_DESCENT = 0.08
_MIN_ASCENT_RATIO = 1.15

# What a crop shows around the baseline even where no letter reaches so far.
_ASCENT = 0.75
_DESCENT = 0.25

_LIGATURES = {chr(code): unicodedata.normalize("NFKC", chr(code)) for code in range(0xFB00, 0xFB07)}
# Hyphen, non-breaking hyphen, soft hyphen where it shows, minus: one glyph on paper.
_HYPHENS = dict.fromkeys("\u2010\u2011\u00ad\u2212\u2043", "-")
_AS_TEXT = str.maketrans({**_LIGATURES, **_HYPHENS})
# How many dots lead to a page number is nothing that a reader would count.
_LEADERS = re.compile(r"(\. ?){5}")
_WITH_DESCENDER = frozenset("gpqy")
_WITH_ASCENDER = frozenset("bdhkl")
_X_HIGH = frozenset("acemnorsuvwxz")


@dataclass(frozen=True, slots=True)
class Line:
    """A run of characters on one baseline without a wide gap.

    Attributes:
        glyphs: What is drawn, without spaces, in the order of the PDF; never empty.
        text: What it says: NFC, ligatures expanded, every hyphen and minus a '-', single spaces.
        gaps: Between neighbours the distance of their advances in em, and whether a space is there.
    """

    glyphs: tuple[Glyph, ...]
    text: str
    gaps: tuple[tuple[float, bool], ...]

    @property
    def em(self) -> float:
        """Font size of most characters, in points."""
        return median(glyph.em for glyph in self.glyphs)

    @property
    def baseline(self) -> float:
        """Height of most characters' origins, in points."""
        return median(glyph.baseline for glyph in self.glyphs)

    @property
    def box(self) -> Box:
        """Outlines of all characters, and at least what a line of this size takes up."""
        em, baseline = self.em, self.baseline
        usual = Box(
            self.glyphs[0].box.left,
            baseline - _DESCENT * em,
            self.glyphs[0].box.right,
            baseline + _ASCENT * em,
        )
        return Box.around([usual, *(glyph.box for glyph in self.glyphs)])


def cut_lines(glyphs: list[Glyph]) -> list[Line]:
    """Lines of a page in the order of the PDF; columns and table cells come apart at wide gaps."""
    lines: list[Line] = []
    run: list[Glyph] = []
    for glyph in glyphs:
        is_end = glyph.char in "\r\n"
        drawn = next((other for other in reversed(run) if not other.is_space), None)
        if run and (is_end or (drawn is not None and not glyph.is_space and _is_elsewhere(drawn, glyph))):
            lines += _line(run)
            run = []
        if not is_end:
            run.append(glyph)
    return lines + _line(run)


def text_fault(line: Line, min_em: float) -> str | None:
    """Why a line's text or layout is not to be trusted, None where nothing speaks against it.

    Args:
        line: The line.
        min_em: Smallest font size that is legible at the chosen resolution, in points.
    """
    if min(glyph.em for glyph in line.glyphs) < min_em:
        return "small text"
    return next((reason for reason, is_so in _FAULTS.items() if is_so(line)), None)


def continues_block(line: Line, following: Line) -> bool:
    """Whether two lines in the PDF's order are of one block: same size, same column, ordinary leading."""
    em = line.em
    leading = (line.baseline - following.baseline) / em
    overlap = min(line.box.right, following.box.right) - max(line.box.left, following.box.left)
    narrower = min(line.box.right - line.box.left, following.box.right - following.box.left)
    return abs(following.em / em - 1) < 0.05 and 0.8 < leading < 2.0 and overlap > 0.6 * narrower


def _is_elsewhere(glyph: Glyph, following: Glyph) -> bool:
    em = max(glyph.em, following.em)
    gap = following.left - glyph.right
    return (
        gap > _MAX_GAP_IN_LINE * em
        or gap < -_MAX_GAP_IN_LINE * em
        or abs(following.baseline - glyph.baseline) > _MAX_BASELINE_STEP * em
    )


def _line(run: list[Glyph]) -> list[Line]:
    """One line, or none where nothing is drawn."""
    drawn: list[Glyph] = []
    gaps: list[tuple[float, bool]] = []
    text = ""
    is_after_space = False
    for glyph in run:
        if glyph.is_space:
            is_after_space = True
            continue
        if drawn:
            gaps.append(((glyph.left - drawn[-1].right) / max(glyph.em, 1e-3), is_after_space))
            text += " " * is_after_space
        text += glyph.char
        drawn.append(glyph)
        is_after_space = False
    if not drawn:
        return []
    return [Line(tuple(drawn), unicodedata.normalize("NFC", text.translate(_AS_TEXT)), tuple(gaps))]


def _is_raised(line: Line) -> bool:
    return any(abs(glyph.baseline - line.baseline) > _MAX_RAISE * line.em for glyph in line.glyphs)


def _has_doubtful_space(line: Line) -> bool:
    return any(gap < _MIN_GAP_AT_SPACE if space else gap > _MAX_GAP_IN_WORD for gap, space in line.gaps)


def _runs_backwards(line: Line) -> bool:
    return any(following.left < glyph.left for glyph, following in pairwise(line.glyphs))


def _is_overstruck(line: Line) -> bool:
    """Whether two characters share most of the narrower one's advance.

    Bold by double printing does, and so do accents put on afterwards and characters that were crossed out.
    """
    for glyph, following in pairwise(line.glyphs):
        narrower = min(glyph.right - glyph.left, following.right - following.left)
        if glyph.right - following.left > _MAX_OVERLAP * max(narrower, 1e-3):
            return True
    return False


def _is_right_to_left(line: Line) -> bool:
    return any(unicodedata.bidirectional(char) in ("R", "AL", "AN") for char in line.text)


def _has_odd_shapes(line: Line) -> bool:
    """Whether letters lack the descender or ascender of what they are said to be.

    Small capitals that the PDF calls lower case have neither, nor do symbols under a wrong map.
    """
    for font in {glyph.font for glyph in line.glyphs}:
        glyphs = [glyph for glyph in line.glyphs if glyph.font == font]
        x_height = max((g.box.top - g.baseline for g in glyphs if g.char in _X_HIGH), default=0.0)
        for glyph in glyphs:
            if glyph.char in _WITH_DESCENDER and glyph.box.bottom > glyph.baseline - _MIN_DESCENT * glyph.em:
                return True
            if glyph.char in _WITH_ASCENDER and glyph.box.top - glyph.baseline < _MIN_ASCENT_RATIO * x_height:
                return True
    return False


_FAULTS: dict[str, Callable[[Line], bool]] = {
    "invisible text": lambda line: any(glyph.is_hidden for glyph in line.glyphs),
    "unmapped character": lambda line: not all(glyph.is_mapped for glyph in line.glyphs),
    "rotated text": lambda line: not all(glyph.is_upright for glyph in line.glyphs),
    "right-to-left text": _is_right_to_left,
    "raised or lowered text": _is_raised,
    "characters out of order": _runs_backwards,
    "overstruck text": _is_overstruck,
    "doubtful space": _has_doubtful_space,
    "letters of another shape": _has_odd_shapes,
    "dot leaders": lambda line: _LEADERS.search(line.text) is not None,
    "too short": lambda line: len(line.glyphs) < _MIN_CHARACTERS,
}
