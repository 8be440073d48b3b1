"""What a source states about a page before any split, selection or pixel.

Every layout comes down to a list of these. Knows field names, aliases and which values they take. Knows
nothing of files.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

from ocrquant.errors import PagesError, SplitError
from ocrquant.pages.page import KINDS, ImageRef, PageKind, Split

__all__ = ["SPLIT_NAMES", "Entry", "parse_kind", "parse_split", "truth_of_parts"]

SPLIT_NAMES: dict[str, Split] = {
    "calibration": "calibration",
    "calib": "calibration",
    "train": "calibration",
    "heldout": "heldout",
    "held-out": "heldout",
    "held_out": "heldout",
    "test": "heldout",
    "validation": "heldout",
    "valid": "heldout",
    "val": "heldout",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One page as its source states it.

    Attributes:
        id: Unique in the source.
        document: What the page is a part of.
        group: Documents that share text share a group and so a split; the document itself where none is
            stated.
        kind: Line, block or page.
        split: None where the source leaves the split to the program.
        text: Truth in NFC with newlines between lines; None where there is none.
        lang: Language code or empty.
        image: Where the image lies.
    """

    id: str
    document: str
    group: str
    kind: PageKind
    split: Split | None
    text: str | None
    lang: str
    image: ImageRef


def parse_kind(value: str | None, default: PageKind, where: str) -> PageKind:
    """The kind that a source names, or the default where it names none.

    Raises:
        PagesError: An unknown kind.
    """
    if not value:
        return default
    for kind in KINDS:
        if value == kind:
            return kind
    raise PagesError(
        where, expected=f"kind to be one of {', '.join(KINDS)}", given=value, fix="correct the kind"
    )


def parse_split(value: str | None, where: str) -> Split | None:
    """The split that a source names, None where it names none.

    Raises:
        SplitError: An unknown name.
    """
    if not value:
        return None
    if value.lower() not in SPLIT_NAMES:
        raise SplitError(
            where,
            expected=f"split to be one of {', '.join(SPLIT_NAMES)}",
            given=value,
            fix="correct the split, or leave it out everywhere to split by document",
        )
    return SPLIT_NAMES[value.lower()]


def truth_of_parts(text: str | None, num_parts: int, where: str) -> list[str | None]:
    """Truth of every page of a file: parts are separated by form feeds, as pdftotext writes them.

    Args:
        text: Everything that is stated for the file; None where nothing is.
        num_parts: Pages of the file.
        where: What an error message calls the file.

    Raises:
        PagesError: The text has another number of parts than the file.
    """
    if text is None:
        return [None] * num_parts
    text = unicodedata.normalize("NFC", text.replace("\r\n", "\n").replace("\r", "\n"))
    parts = text.split("\f") if num_parts > 1 else [text.removesuffix("\f")]
    if len(parts) == num_parts + 1 and not parts[-1].strip():
        parts.pop()
    if len(parts) != num_parts:
        raise PagesError(
            where,
            expected=f"{num_parts} texts separated by form feeds, one a page",
            given=len(parts),
            fix="put a form feed between the texts of two pages",
        )
    return [part.strip("\n") for part in parts]
