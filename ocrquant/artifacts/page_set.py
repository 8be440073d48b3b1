"""``pages.json``: which pages a run uses, and where their truth comes from.

Knows names, digests and texts. Does not know how a page is read or rendered.
"""

from __future__ import annotations

from collections import Counter
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from ocrquant.artifacts.base import Artifact, FrozenModel, Sha256

__all__ = ["PageKind", "PageRecord", "PageSet", "Split", "Storage", "TruthSource"]

PageKind = Literal["line", "block", "page"]
Split = Literal["calibration", "heldout"]
Storage = Literal["image", "pdf", "parquet", "arrow"]
TruthSource = Literal["ground_truth", "model"]


class PageRecord(FrozenModel):
    """One page, line crop or block crop.

    Attributes:
        id: Unique name of the page.
        document: What it was cut from; a document lies in one split only.
        kind: What the prompt asks for.
        split: What it is used for.
        file: File that holds the image, relative to the source of pages.
        storage: What kind of file that is.
        index: Frame of an image, page of a PDF or row of a table, counted from 0.
        dpi: Resolution at which a PDF page is rendered; None for everything that has pixels of its own.
        sha256: Digest of the pixels' source: the encoded image, or the PDF.
        width: Width in pixels, as given to the image processor.
        height: Height in pixels, as given to the image processor.
        text: The truth; None until the bf16 model's own transcription stands in for it.
        truth_source: Whether the text came with the page or has to come from the model.
        lang: Language code as given by the source; empty where it says nothing.
    """

    id: str
    document: str
    kind: PageKind
    split: Split
    file: str
    storage: Storage
    index: int = Field(ge=0)
    dpi: int | None
    sha256: Sha256
    width: int = Field(gt=0)
    height: int = Field(gt=0)
    text: str | None
    truth_source: TruthSource
    lang: str = ""

    @model_validator(mode="after")
    def _truth_has_text(self) -> Self:
        if self.text is None and self.truth_source == "ground_truth":
            raise ValueError("ground truth needs a text")
        return self


class PageSet(Artifact):
    """All pages of a run, in the order in which stages take them."""

    FILE_NAME: ClassVar[str] = "pages.json"
    STAGE: ClassVar[str] = "pages"

    source: str
    pages: list[PageRecord]

    @model_validator(mode="after")
    def _check(self) -> Self:
        ids = Counter(page.id for page in self.pages)
        if repeated := [name for name, count in ids.items() if count > 1]:
            raise ValueError(f"page {repeated[0]!r} is listed twice")
        split_of: dict[str, Split] = {}
        for page in self.pages:
            if split_of.setdefault(page.document, page.split) != page.split:
                raise ValueError(f"document {page.document!r} lies in both splits")
        return self

    def of_split(self, split: Split) -> list[PageRecord]:
        """The pages of one split, in order."""
        return [page for page in self.pages if page.split == split]
