"""A folder of crops with exact text out of a person's own born-digital PDFs.

Knows which pages to visit, how many crops to take and what is written about each. The checks are in
`ocrquant.pages.cutting`.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ocrquant.artifacts import atomic_folder, sha256_file
from ocrquant.errors import OutputError, PagesError, RecipeError
from ocrquant.pages.cutting import Crop, cut_page
from ocrquant.pages.folder import METADATA_FILE, visible_files
from ocrquant.pages.page import MAX_PIXELS
from ocrquant.pages.pdf import num_pdf_pages

__all__ = ["DEFAULT_DPIS", "SUMMARY_FILE", "MakeSummary", "make_pages"]

SUMMARY_FILE = "summary.json"
DEFAULT_DPIS = (96, 120, 150)
# A quarter of the crops of a page are blocks, as far as it has any.
_BLOCK_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class MakeSummary:
    """What became of the PDFs.

    Attributes:
        num_documents: PDFs that gave at least one crop.
        num_pages: Pages that were visited.
        num_lines: Line crops written.
        num_blocks: Block crops written.
        num_kept: Crops that passed all checks, written or not.
        dropped: How many lines, blocks, pages or documents were left out, by reason, most frequent first.
    """

    num_documents: int
    num_pages: int
    num_lines: int
    num_blocks: int
    num_kept: int
    dropped: dict[str, int]


@dataclass(frozen=True, slots=True)
class _Document:
    path: Path
    name: str
    sha256: str
    order: tuple[int, ...]


def make_pages(
    pdfs: Sequence[str | Path],
    out: str | Path,
    *,
    dpis: Sequence[int] = DEFAULT_DPIS,
    seed: int = 0,
    max_crops: int = 1000,
    max_crops_per_page: int = 12,
    max_pixels: int = MAX_PIXELS,
    on_page: Callable[[Path, int], None] | None = None,
) -> MakeSummary:
    """Cut line and block crops with exact text and write them as a folder that `load_pages` reads.

    A crop is kept only if every character of its text is mapped, upright, visible in the pixels and alone
    in its place, no other text and less than 8 % foreign ink lie in the crop, and an em has at least 10
    pixels. Pages are visited in an order drawn by seed, the documents taking turns, until there are enough
    crops. The folder appears
    as a whole or not at all: ``<document>/pNNNN-<kind>-NN.png``, ``metadata.jsonl`` with text and
        provenance, and
    ``summary.json``.

    Args:
        pdfs: PDF files, or folders that hold some at any depth.
        out: Folder to write; it must not exist or be empty.
        dpis: Resolutions; one is drawn for each page.
        seed: Of every draw.
        max_crops: Stop when so many are written.
        max_crops_per_page: So that one page cannot fill the folder; a quarter of them blocks.
        max_pixels: Larger pages are left out.
        on_page: Called after each page with the PDF and the number of crops so far.

    Raises:
        RecipeError: An argument out of range.
        PagesError: No PDF, or no crop passed the checks.
        ImageError, EncryptedPdfError: A PDF that cannot be read.
        OutputError: The folder has something in it or cannot be written.
    """
    folder = Path(out)
    _check_arguments(dpis, max_crops, max_crops_per_page)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OutputError(
            folder, expected="a new or empty folder", given="something else", fix="name another"
        )
    dropped: Counter[str] = Counter()
    documents = _documents(_pdf_files(pdfs), seed, dropped)
    written: Counter[str] = Counter()
    fruitful: set[str] = set()
    num_pages = num_kept = 0
    with atomic_folder(folder) as temporary, (temporary / METADATA_FILE).open("w", encoding="utf-8") as rows:
        for document, index in _turns(documents):
            rng = random.Random(f"{seed}:{document.sha256}:{index}")
            dpi = rng.choice(list(dpis))
            cut = cut_page(document.path, index, dpi, rng, max_pixels)
            dropped += cut.dropped
            num_pages += 1
            num_kept += len(cut.lines) + len(cut.blocks)
            room = min(max_crops_per_page, max_crops - written.total())
            for crop in _choose(cut.lines, cut.blocks, room, rng):
                written[crop.kind] += 1
                fruitful.add(document.sha256)
                name = f"{document.name}/p{index + 1:04d}-{crop.kind}-{written.total():05d}.png"
                _write(crop, temporary / name)
                rows.write(json.dumps(_row(crop, name, document, index, dpi), ensure_ascii=False) + "\n")
            if on_page is not None:
                on_page(document.path, written.total())
            if written.total() >= max_crops:
                break
        _check_any(written, dropped, documents)
        summary = MakeSummary(
            len(fruitful), num_pages, written["line"], written["block"], num_kept, dict(dropped.most_common())
        )
        (temporary / SUMMARY_FILE).write_text(json.dumps(asdict(summary), indent=1) + "\n", encoding="utf-8")
    return summary


def _check_arguments(dpis: Sequence[int], max_crops: int, max_crops_per_page: int) -> None:
    for name, values in (
        ("dpis", dpis),
        ("max_crops", [max_crops]),
        ("max_crops_per_page", [max_crops_per_page]),
    ):
        if not values or min(values) < 1:
            raise RecipeError(f"pages make: {name}", expected="at least 1", given=values, fix="correct it")


def _pdf_files(pdfs: Sequence[str | Path]) -> list[Path]:
    files: list[Path] = []
    for path in map(Path, pdfs):
        if path.is_dir():
            files += [file for file in visible_files(path) if file.suffix.lower() == ".pdf"]
        elif path.is_file():
            files.append(path)
        else:
            raise PagesError(path, expected="a PDF", given="nothing of that name", fix="correct the path")
    if not files:
        raise PagesError(
            "pages make", expected="at least one PDF", given="none", fix="name PDF files or folders"
        )
    return files


def _documents(files: list[Path], seed: int, dropped: Counter[str]) -> list[_Document]:
    """Every PDF once, however often and under whatever name it was given."""
    documents: dict[str, _Document] = {}
    for path in files:
        digest = sha256_file(path)
        if digest in documents:
            dropped["document: the same PDF again"] += 1
            continue
        order = list(range(num_pdf_pages(path)))
        random.Random(f"{seed}:{digest}").shuffle(order)
        stem = re.sub(r"[^\w.-]+", "_", path.stem)
        documents[digest] = _Document(path, f"{stem}-{digest[:8]}", digest, tuple(order))
    return list(documents.values())


def _turns(documents: list[_Document]) -> list[tuple[_Document, int]]:
    """Document and page to visit, one page of each document in turn."""
    longest = max(len(document.order) for document in documents)
    return [
        (document, document.order[turn])
        for turn in range(longest)
        for document in documents
        if turn < len(document.order)
    ]


def _choose(lines: list[Crop], blocks: list[Crop], room: int, rng: random.Random) -> list[Crop]:
    """At most ``room`` crops of a page, none of which shows what another one shows."""
    num_blocks = min(len(blocks), math.ceil(_BLOCK_SHARE * room))
    chosen = rng.sample(blocks, num_blocks)
    others = [line for line in lines if not any(line.box.overlaps(block.box) for block in chosen)]
    chosen += rng.sample(others, min(len(others), room - num_blocks))
    return sorted(chosen, key=lambda crop: (crop.box.top, crop.box.left))


def _write(crop: Crop, path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    crop.image.save(path, format="PNG", optimize=True)


def _row(crop: Crop, name: str, document: _Document, index: int, dpi: int) -> dict[str, object]:
    box = crop.box
    return {
        "file_name": name,
        "text": crop.text,
        "document": document.name,
        "kind": crop.kind,
        "provenance": {
            "file": document.path.name,
            "sha256": document.sha256,
            "page": index + 1,
            "dpi": dpi,
            "box": [box.left, box.top, box.right, box.bottom],
        },
    }


def _check_any(written: Counter[str], dropped: Counter[str], documents: list[_Document]) -> None:
    if not written.total():
        reasons = ", ".join(f"{count} x {reason}" for reason, count in dropped.most_common(3))
        raise PagesError(
            documents[0].path if len(documents) == 1 else f"{len(documents)} PDFs",
            expected="at least one line whose text can be trusted",
            given=reasons or "no text at all",
            fix="give PDFs that were born digital, or transcribe scans yourself",
        )
