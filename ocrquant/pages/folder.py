"""Pages in a folder of images and PDFs, with text beside them or in ``metadata.jsonl``.

Knows the folder conventions (`datasets` calls them "imagefolder"). Opens files only to count frames and PDF
pages.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from ocrquant.errors import PagesError
from ocrquant.pages.entries import SPLIT_NAMES, Entry, parse_kind, parse_split, truth_of_parts
from ocrquant.pages.page import ImageRef, PageKind
from ocrquant.pages.pdf import num_pdf_pages
from ocrquant.pages.pixels import IMAGE_SUFFIXES, num_frames

__all__ = [
    "METADATA_FILE",
    "MetadataRow",
    "is_page_file",
    "list_folder",
    "page_parts",
    "read_rows",
    "visible_files",
]

METADATA_FILE = "metadata.jsonl"
_MULTI_FRAME_SUFFIXES = frozenset({".tif", ".tiff"})


class MetadataRow(BaseModel):
    """One line of ``metadata.jsonl``.

    Attributes:
        file_name: Path relative to the file itself.
        text: Truth; parts of a PDF or TIFF file separated by form feeds.
        document: What the image is a part of; the file itself where nothing is said.
        group: Documents that share text.
        kind: line, block or page.
        split: A name of `SPLIT_NAMES`.
        lang: Language code.
        provenance: Where the image came from; kept for people, not read here.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    file_name: str
    text: str | None = None
    document: str | None = None
    group: str | None = None
    kind: str | None = None
    split: str | None = None
    lang: str = ""
    provenance: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class _Options:
    root: Path
    default_kind: PageKind
    dpi: int


def is_page_file(path: Path) -> bool:
    """Whether the name is that of an image or PDF."""
    suffix = path.suffix.lower()
    return suffix in IMAGE_SUFFIXES or suffix == ".pdf"


def visible_files(root: Path, pattern: str = "*") -> list[Path]:
    """Files below a folder whose names match, sorted, without hidden files and folders."""
    return sorted(
        path
        for path in root.rglob(pattern)
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(root).parts)
    )


def list_folder(files: list[Path], root: Path, default_kind: PageKind, dpi: int) -> list[Entry]:
    """One entry a frame or PDF page.

    A ``metadata.jsonl`` speaks for every image below its folder and has to name them all. A first folder
    called train, test and so on states the split of what is in it.

    Args:
        files: Images and PDFs below ``root``, sorted.
        root: Folder that ids are relative to.
        default_kind: Kind of everything that states none.
        dpi: Resolution for PDF pages.

    Raises:
        PagesError: Metadata that is malformed, names a missing file or leaves one out; two images for one
            text.
        SplitError: An unknown split.
        ImageError, EncryptedPdfError: A PDF or TIFF file that cannot be opened.
    """
    rows = _read_metadata(root)
    _check_listed(files, rows, root)
    _check_texts_are_told_apart(files, rows, root)
    options = _Options(root, default_kind, dpi)
    entries: list[Entry] = []
    for path in files:
        entries += _entries_of_file(path, rows.get(path), options)
    return entries


def _entries_of_file(path: Path, row: MetadataRow | None, options: _Options) -> list[Entry]:
    name = path.relative_to(options.root).as_posix()
    refs = page_parts(path, name, options.dpi)
    stated = row if row is not None else MetadataRow(file_name=name)
    text = stated.text if stated.text is not None else _text_beside(path)
    document = stated.document or name
    split = parse_split(stated.split or _split_of_folder(name), name)
    return [
        Entry(
            id=f"{name}#{ref.index + 1}" if len(refs) > 1 else name,
            document=document,
            group=stated.group or document,
            kind=parse_kind(stated.kind, options.default_kind, name),
            split=split,
            text=part,
            lang=stated.lang,
            image=ref,
        )
        for ref, part in zip(refs, truth_of_parts(text, len(refs), name), strict=True)
    ]


def page_parts(path: Path, name: str, dpi: int) -> list[ImageRef]:
    """Every page of a PDF, every frame of a TIFF file, or the one image that another file is.

    Args:
        path: The file.
        name: What an error message calls it.
        dpi: Resolution for PDF pages.

    Raises:
        ImageError, EncryptedPdfError: A PDF or TIFF file that cannot be opened; others are not.
    """
    suffix = path.suffix.lower()
    if suffix == ".pdf":
        return [ImageRef(path, "pdf", index, dpi) for index in range(num_pdf_pages(path))]
    frames = num_frames(path, name) if suffix in _MULTI_FRAME_SUFFIXES else 1
    return [ImageRef(path, "image", index) for index in range(frames)]


def _text_beside(path: Path) -> str | None:
    text = path.with_suffix(".txt")
    if not text.is_file():
        return None
    try:
        return text.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PagesError(text, expected="UTF-8", given=error.reason, fix="convert it to UTF-8") from None


def _split_of_folder(name: str) -> str | None:
    first, _, rest = name.partition("/")
    return first if rest and first.lower() in SPLIT_NAMES else None


def _read_metadata(root: Path) -> dict[Path, MetadataRow]:
    """Rows of every metadata file below a folder, by the image that they name."""
    rows: dict[Path, MetadataRow] = {}
    for other in visible_files(root, "metadata.csv"):
        raise PagesError(other, expected=METADATA_FILE, given=other.name, fix="write one JSON object a line")
    for file in visible_files(root, METADATA_FILE):
        for row, where in read_rows(file):
            inside = os.path.normpath(file.parent.relative_to(root) / row.file_name)
            path = root / inside
            if Path(inside).is_absolute() or inside.startswith(".."):
                raise PagesError(
                    where,
                    expected="a file below the folder of pages",
                    given=row.file_name,
                    fix="move it there",
                )
            if not path.is_file() or not is_page_file(path):
                raise PagesError(
                    where,
                    expected="file_name of an image or PDF",
                    given=f"{row.file_name}, which is {'neither' if path.is_file() else 'missing'}",
                    fix="restore the file or remove the line",
                )
            if path in rows:
                raise PagesError(
                    where,
                    expected="every file once",
                    given=f"{row.file_name} again",
                    fix="remove one of the lines",
                )
            rows[path] = row
    return rows


def read_rows(file: Path) -> Iterator[tuple[MetadataRow, str]]:
    """Rows of one metadata file, and where each stands for an error message.

    Raises:
        PagesError: A line is malformed.
    """
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        if line.strip():
            where = f"{file}, line {number}"
            yield _parse_row(line, where), where


def _parse_row(line: bytes, where: str) -> MetadataRow:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise PagesError(where, expected="a JSON object", given=error, fix="correct the line") from None
    try:
        return MetadataRow.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise PagesError(
            where,
            expected=f"keys {', '.join(MetadataRow.model_fields)}",
            given=f"{key}: {first['msg']}" if key else first["msg"],
            fix="correct the line; anything else may go under provenance",
        ) from None


def _check_listed(files: list[Path], rows: dict[Path, MetadataRow], root: Path) -> None:
    folders = {path.parent for path in visible_files(root, METADATA_FILE)}
    silent = [path for path in files if path not in rows and not folders.isdisjoint(path.parents)]
    if silent:
        raise PagesError(
            silent[0],
            expected=f"every image to be named in {METADATA_FILE}",
            given=f"{len(silent)} that are not",
            fix="add a line for each or remove the images",
        )


def _check_texts_are_told_apart(files: list[Path], rows: dict[Path, MetadataRow], root: Path) -> None:
    """Two images that differ only in their suffix would both claim NAME.txt."""
    claims = Counter(path.with_suffix("") for path in files if path not in rows)
    for stem, count in claims.items():
        if count > 1 and stem.with_name(stem.name + ".txt").is_file():
            raise PagesError(
                stem.with_name(stem.name + ".txt"),
                expected="one image of that name",
                given=count,
                fix="rename or remove one of the images",
            )
