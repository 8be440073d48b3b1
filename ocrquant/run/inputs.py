"""From what a person names (images, folders, PDFs, patterns) to pages with names of their own.

Knows files and names. Opens a file only to count its pages; one that cannot be opened becomes a page with an
error, so that it stops nobody else.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ocrquant.errors import OcrQuantError, PagesError, RequestError
from ocrquant.pages import KINDS, ImageRef, PageKind
from ocrquant.pages.entries import parse_kind
from ocrquant.pages.folder import METADATA_FILE, is_page_file, page_parts, read_rows, visible_files

__all__ = ["InputPage", "list_inputs"]

DEFAULT_KIND: PageKind = "page"


@dataclass(frozen=True, slots=True)
class InputPage:
    """A page to read.

    Attributes:
        name: Path of its text relative to the output folder, without ``.txt``: that of the image relative to
            what was named; with the number of the page behind it for a PDF or an image of several frames.
        image: Where it lies.
        kind: A text line, a block of lines or a whole page.
        error: Why its file cannot be opened; None if it can.
    """

    name: str
    image: ImageRef
    kind: PageKind
    error: OcrQuantError | None = None


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    name: str
    root: Path
    """What the name is relative to."""


def list_inputs(sources: Sequence[str], kind: PageKind | None = None, dpi: int = 150) -> list[InputPage]:
    """Every page once, in the order in which the sources were named.

    Args:
        sources: Images, PDFs, folders that hold such at any depth, and patterns of `glob` (``**`` for any
            folders).
        kind: Of all pages. None takes the kind that the nearest ``metadata.jsonl`` states, of the folder of
            the image up to the one that holds what was named; and ``page`` where there is none.
        dpi: Resolution for PDF pages.

    Raises:
        PagesError: A source that is not there or holds no page, two pages that would have one name, or
            malformed metadata.
        RequestError: A kind that does not exist, or no resolution.
    """
    if kind is not None and kind not in KINDS:
        expected = f"one of {', '.join(KINDS)}"
        raise RequestError("kind of page", expected=expected, given=kind, fix="correct the kind")
    if dpi < 1:
        raise RequestError("dpi", expected="at least 1", given=dpi, fix="correct the value")
    kinds = _Kinds(kind)
    pages: list[InputPage] = []
    seen: dict[str, Path] = {}
    paths: set[str] = set()
    for source in sources:
        for file in _files(source):
            if (path := os.path.abspath(file.path)) in paths:
                continue
            paths.add(path)
            if file.name in seen:
                raise _same_name(file, seen[file.name])
            seen[file.name] = file.path
            pages += _pages(file, kinds.of(file), dpi)
    return pages


def _files(source: str) -> Iterator[_File]:
    """Page files of one source, sorted."""
    path = Path(source).expanduser()
    found = 0
    for match, root in _matches(path):
        below = [file for file in visible_files(match) if is_page_file(file)] if match.is_dir() else [match]
        for file in below:
            if is_page_file(file):
                found += 1
                yield _File(file, file.relative_to(root).as_posix(), root)
    if not found:
        given = "no such file" if not path.exists() else "none" if path.is_dir() else "another kind of file"
        fix = "name images, PDFs, or folders or patterns that hold some"
        raise PagesError(path, expected="at least one image or PDF", given=given, fix=fix)


def _matches(path: Path) -> list[tuple[Path, Path]]:
    """Files and folders that a source names, and what their names are relative to."""
    if path.is_dir():
        return [(path, path)]
    if path.exists() or not glob.has_magic(str(path)):
        return [(path, path.parent)] if path.exists() else []
    fixed = 0
    while not glob.has_magic(path.parts[fixed]):
        fixed += 1
    root = Path(*path.parts[:fixed])
    return [(Path(match), root) for match in sorted(glob.glob(str(path), recursive=True))]


def _pages(file: _File, kind: PageKind, dpi: int) -> list[InputPage]:
    try:
        refs = page_parts(file.path, file.name, dpi)
    except OcrQuantError as error:
        is_pdf = file.path.suffix.lower() == ".pdf"
        ref = ImageRef(file.path, "pdf", 0, dpi) if is_pdf else ImageRef(file.path, "image")
        return [InputPage(file.name, ref, kind, error)]
    if len(refs) == 1 and refs[0].storage == "image":
        return [InputPage(file.name, refs[0], kind)]
    digits = len(str(len(refs)))  # so that names sort as pages do
    return [InputPage(f"{file.name}-{ref.index + 1:0{digits}}", ref, kind) for ref in refs]


def _same_name(file: _File, other: Path) -> PagesError:
    return PagesError(
        file.path,
        expected="a name of its own relative to what was named",
        given=f"{file.name} again, as of {other}",
        fix="name the folder that holds both, or give them output folders of their own",
    )


class _Kinds:
    """Kinds that metadata states, each file read once.

    Args:
        stated: The kind of all pages; no metadata is read then.
    """

    def __init__(self, stated: PageKind | None) -> None:
        self._stated = stated
        self._rows: dict[Path, dict[str, PageKind] | None] = {}

    def of(self, file: _File) -> PageKind:
        if self._stated is not None:
            return self._stated
        path, last = Path(os.path.abspath(file.path)), Path(os.path.abspath(file.root)).parent
        for folder in path.parents:
            rows = self._read(folder)
            if rows is not None:
                return rows.get(str(path), DEFAULT_KIND)
            if folder == last:
                break
        return DEFAULT_KIND

    def _read(self, folder: Path) -> dict[str, PageKind] | None:
        if folder not in self._rows:
            file = folder / METADATA_FILE
            self._rows[folder] = _kinds_of(file) if file.is_file() else None
        return self._rows[folder]


def _kinds_of(file: Path) -> dict[str, PageKind]:
    return {
        os.path.normpath(file.parent / row.file_name): parse_kind(row.kind, DEFAULT_KIND, where)
        for row, where in read_rows(file)
    }
