"""Where an output differs from its truth, and how foreign text is made safe to look at.

Knows strings. Does not know whether they end up in HTML or Markdown, except that control and direction
characters must not act on either.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import Literal

from rapidfuzz.distance import Levenshtein

from ocrquant.metrics.text import normalize

__all__ = ["Span", "differences", "shorten", "visible"]

SpanKind = Literal["same", "missing", "added"]

_CONTROL_PICTURES = 0x2400
_DELETE, _DELETE_PICTURE = 0x7F, "\u2421"
_KEPT = frozenset("\n")


@dataclass(frozen=True, slots=True)
class Span:
    """A run of characters: in both texts, only in the truth (missing), or only in the output (added)."""

    kind: SpanKind
    text: str


def differences(truth: str, output: str) -> list[Span]:
    """One optimal alignment of two texts, in the form in which they are judged.

    Returns:
        Spans in reading order; those that are not ``added`` spell the truth, those that are not ``missing``
        the output. What was replaced is a ``missing`` span before an ``added`` one.
    """
    truth, output = normalize(truth), normalize(output)
    spans = []
    for edit in Levenshtein.opcodes(truth, output):
        old, new = truth[edit.src_start : edit.src_end], output[edit.dest_start : edit.dest_end]
        if edit.tag == "equal":
            spans.append(Span("same", old))
            continue
        if old:
            spans.append(Span("missing", old))
        if new:
            spans.append(Span("added", new))
    return spans


def shorten(spans: list[Span], max_characters: int) -> tuple[list[Span], int]:
    """Cuts off what is beyond some characters.

    Returns:
        The spans that are left, and how many characters were cut off.
    """
    kept, room = [], max_characters
    for span in spans:
        if room <= 0:
            break
        kept.append(Span(span.kind, span.text[:room]))
        room -= len(span.text)
    return kept, max(0, sum(len(span.text) for span in spans) - max_characters)


def visible(text: str) -> str:
    """Shows characters that would act on a page or stay unseen: controls, direction marks, lone surrogates.

    Controls become their pictures (U+2400 block), other formatting characters their code in brackets, except
    joiners, which scripts need; line feeds stay.
    """
    return "".join(character if character in _KEPT else _shown(character) for character in text)


def _shown(character: str) -> str:
    code, category = ord(character), unicodedata.category(character)
    if category == "Cc":
        if code == _DELETE:
            return _DELETE_PICTURE
        return chr(_CONTROL_PICTURES + code) if code < 0x20 else f"[U+{code:04X}]"
    if category == "Cs" or (category == "Cf" and character not in "\u200c\u200d\u00ad"):
        return f"[U+{code:04X}]"
    return character
