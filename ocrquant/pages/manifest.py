"""What a shipped set of pages promises, and the check that it still holds.

Knows digests, splits and readability. Does not know who made the pages.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from ocrquant.artifacts import FrozenModel, write_bytes
from ocrquant.errors import ImageError, PagesError, SplitError
from ocrquant.pages.load import load_pages, page_digest, page_image
from ocrquant.pages.page import MAX_PIXELS, Page, PageKind, Split

__all__ = ["MANIFEST_FILE", "Manifest", "PageCount", "validate", "write_manifest"]

MANIFEST_FILE = "manifest.json"


class PageCount(FrozenModel):
    """How much of one split and kind there is."""

    split: Split
    kind: PageKind
    num_pages: int = Field(ge=1)
    num_documents: int = Field(ge=1)
    num_characters: int = Field(ge=0)


class Manifest(FrozenModel):
    """Content of ``manifest.json``: totals for people, one digest (`page_digest`) a page for the check."""

    schema_version: Literal[1] = 1
    counts: list[PageCount]
    digests: dict[str, str]

    @classmethod
    def of(cls, pages: list[Page]) -> Manifest:
        """Reads every page's bytes once."""
        groups: dict[tuple[Split, PageKind], list[Page]] = {}
        for page in pages:
            groups.setdefault((page.split, page.kind), []).append(page)
        counts = [
            PageCount(
                split=split,
                kind=kind,
                num_pages=len(members),
                num_documents=len({page.document for page in members}),
                num_characters=sum(len(page.text or "") for page in members),
            )
            for (split, kind), members in sorted(groups.items())
        ]
        return cls(counts=counts, digests={page.id: page_digest(page) for page in pages})


def write_manifest(source: str | Path) -> Manifest:
    """Describe all pages of a folder in its ``manifest.json``.

    Raises:
        OcrQuantError: Whatever `load_pages` raises; OutputError if the file cannot be written.
    """
    manifest = Manifest.of(load_pages(source))
    write_bytes(Path(source) / MANIFEST_FILE, (manifest.model_dump_json(indent=1) + "\n").encode())
    return manifest


def validate(source: str | Path, *, max_pixels: int = MAX_PIXELS) -> list[Page]:
    """Read everything in a folder of pages and compare it with its manifest.

    Args:
        source: Folder with a ``manifest.json``.
        max_pixels: Largest page allowed, in pixels.

    Returns:
        All its pages.

    Raises:
        PagesError: No or malformed manifest; pages missing, added or changed since it was written.
        SplitError: A document, or the same image with the same text, lies in both splits.
        ImageError: A page whose pixels cannot be decoded or have another size than its header says.
    """
    pages = load_pages(source, max_pixels=max_pixels)
    stated = _read(Path(source) / MANIFEST_FILE)
    found = Manifest.of(pages)
    _check_digests(stated, found, source)
    _check_no_page_twice(pages, found, source)
    for page in pages:
        size = page_image(page).size
        if size != (page.width, page.height):
            raise ImageError(f"page {page.id}", expected=f"{page.width} x {page.height}", given=size)
    return pages


def _read(path: Path) -> Manifest:
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except OSError as error:
        given = error.strerror
    except ValidationError as error:
        given = error.errors()[0]["msg"]
    raise PagesError(path, expected="a manifest", given=given, fix="write it with write_manifest")


def _check_digests(stated: Manifest, found: Manifest, source: str | Path) -> None:
    names = sorted(stated.digests.keys() | found.digests.keys())
    differing = [name for name in names if stated.digests.get(name) != found.digests.get(name)]
    if differing:
        raise PagesError(
            f"{source}, page {differing[0]}",
            expected=f"digest {stated.digests.get(differing[0], 'of no such page')}",
            given=f"{found.digests.get(differing[0], 'no page')}, one of {len(differing)} that differ",
            fix="restore the pages, or write the manifest again",
        )
    if stated != found:
        raise PagesError(source, expected="the totals of the manifest", given="others", fix="write it again")


def _check_no_page_twice(pages: list[Page], found: Manifest, source: str | Path) -> None:
    splits = {(found.digests[page.id], page.split) for page in pages}
    both = [digest for digest, count in Counter(digest for digest, _ in splits).items() if count > 1]
    if both:
        names = [page.id for page in pages if found.digests[page.id] == both[0]]
        raise SplitError(
            source, expected="no page in both splits", given=" = ".join(names), fix="remove one of the two"
        )
