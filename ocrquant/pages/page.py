"""What a page is: where its image lies, what it says, which split it belongs to.

Knows names and fields. Knows nothing of how a folder is listed, an image decoded or a split chosen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

__all__ = [
    "KINDS",
    "MAX_PIXELS",
    "SPLITS",
    "ImageRef",
    "Page",
    "PageKind",
    "Split",
    "Storage",
    "TruthSource",
]

PageKind = Literal["line", "block", "page"]
Split = Literal["calibration", "heldout"]
TruthSource = Literal["ground_truth", "model"]
Storage = Literal["image", "pdf", "parquet", "arrow"]

KINDS: tuple[PageKind, ...] = get_args(PageKind)
SPLITS: tuple[Split, ...] = get_args(Split)

# An A4 page at 600 dpi has 35 million pixels; a page above this limit is a mistake more often than a wish.
MAX_PIXELS = 50_000_000


@dataclass(frozen=True, slots=True)
class ImageRef:
    """Where the encoded image of a page lies; nothing is read before it is asked for.

    Attributes:
        path: The file that holds it.
        storage: What kind of file that is.
        index: Frame of an image, page of a PDF or row of a table, counted from 0.
        dpi: Resolution at which a PDF page is rendered; None for everything that has pixels of its own.
    """

    path: Path
    storage: Storage
    index: int = 0
    dpi: int | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """One image with its truth.

    Attributes:
        id: Unique in its source and stable between runs.
        document: Pages of one document never lie on both sides of the split.
        kind: A text line, a block of lines or a whole page.
        split: The side that the page belongs to.
        image: Where the image lies; `page_image` decodes it.
        width: Pixels across, after the orientation that the file asks for.
        height: Pixels down, likewise.
        text: The truth, lines separated by a newline; None until a model's transcription stands in for it.
        truth_source: "ground_truth" if the text came with the page, "model" if a model has to supply it.
        lang: Language code as given by the source; empty where the source says nothing.
    """

    id: str
    document: str
    kind: PageKind
    split: Split
    image: ImageRef
    width: int
    height: int
    text: str | None
    truth_source: TruthSource
    lang: str = ""

    def with_transcription(self, text: str) -> Page:
        """The same page with a model's own transcription in place of the truth that it lacks."""
        assert self.truth_source == "model", f"page {self.id} has ground truth"
        return replace(self, text=text)
