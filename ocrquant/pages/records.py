"""Pages to and from the records of ``pages.json``.

Knows both sides field by field. Does not know what else the stage file holds.
"""

from __future__ import annotations

from pathlib import Path

from ocrquant.artifacts import PageRecord
from ocrquant.pages.load import image_sha256, source_folder
from ocrquant.pages.page import ImageRef, Page

__all__ = ["from_record", "to_record"]


def to_record(page: Page, source: str | Path) -> PageRecord:
    """What ``pages.json`` says of a page.

    Args:
        page: A page of that source.
        source: What `load_pages` was given; the recorded file is relative to it.
    """
    ref = page.image
    return PageRecord(
        id=page.id,
        document=page.document,
        kind=page.kind,
        split=page.split,
        file=ref.path.relative_to(source_folder(source)).as_posix(),
        storage=ref.storage,
        index=ref.index,
        dpi=ref.dpi,
        sha256=image_sha256(page),
        width=page.width,
        height=page.height,
        text=page.text,
        truth_source=page.truth_source,
        lang=page.lang,
    )


def from_record(record: PageRecord, source: str | Path) -> Page:
    """The page that a record describes, its image still unread; ``source`` as for `to_record`."""
    return Page(
        id=record.id,
        document=record.document,
        kind=record.kind,
        split=record.split,
        image=ImageRef(source_folder(source) / record.file, record.storage, record.index, record.dpi),
        width=record.width,
        height=record.height,
        text=record.text,
        truth_source=record.truth_source,
        lang=record.lang,
    )
