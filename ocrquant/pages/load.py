"""From a source of pages to a list of `Page`, and from a `Page` to pixels and digests.

Knows which layout a source has and the order of the steps: list, split, select, measure. Listing reads
    names, tables
without their images, and headers; pixels are read when `page_image` asks for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path

from PIL import Image

from ocrquant.artifacts import sha256_bytes, sha256_data, sha256_file
from ocrquant.errors import PagesError, RecipeError
from ocrquant.pages.entries import Entry
from ocrquant.pages.folder import is_page_file, list_folder, visible_files
from ocrquant.pages.image import check_size, ref_image
from ocrquant.pages.page import KINDS, MAX_PIXELS, Page, PageKind, Split
from ocrquant.pages.splits import assign_splits, check_both_sides, select
from ocrquant.pages.tables import is_saved_dataset, list_parquet, list_saved_dataset, read_cell

__all__ = ["image_sha256", "load_pages", "page_digest", "page_image", "source_folder"]


def load_pages(
    source: str | Path,
    *,
    num_calibration_pages: int | None = None,
    num_heldout_pages: int | None = None,
    heldout_fraction: float = 0.25,
    seed: int = 0,
    kinds: Collection[PageKind] = KINDS,
    default_kind: PageKind = "page",
    dpi: int = 150,
    max_pixels: int = MAX_PIXELS,
) -> list[Page]:
    """Pages of a folder or table, split by document, selected by seed, measured from their headers.

    Layouts of a source:

    - a folder of images and PDFs at any depth, truth in ``NAME.txt`` beside ``NAME.png`` or in
      ``metadata.jsonl`` (`ocrquant.pages.folder.MetadataRow`); texts of a PDF or multi-frame TIFF are
      separated by form feeds;
    - a parquet file or folder of them, or a folder that `datasets` saved: column ``image`` (bytes, or a
      struct with bytes and path) and optionally ``id``, ``document`` or ``doc``, ``group``, ``kind``,
      ``split``, ``text``, ``lang``; other columns are left alone.

    Without a stated document every file, or every row of a table, is a document of its own. Splits go by
    the names in `ocrquant.pages.entries.SPLIT_NAMES`; a source that states none is split by document.

    Args:
        source: Folder or parquet file.
        num_calibration_pages: Calibration pages to take, fewer where the source has fewer; None takes all.
        num_heldout_pages: Held-out pages to take, likewise.
        heldout_fraction: Share of the documents held out where the source states no split, in (0, 1).
        seed: Of that draw and of the selection.
        kinds: Kinds of page to take.
        default_kind: Kind of pages that state none.
        dpi: Resolution at which PDF pages are rendered.
        max_pixels: Largest page allowed, in pixels.

    Returns:
        Pages in the order of the source. Either all have ground truth, or all wait for a model's
        transcription.

    Raises:
        RecipeError: An argument out of range.
        PagesError: Source missing, empty or malformed; no page of the asked kinds; an id twice; text for
            some only.
        SplitError: No held-out or no calibration page, an unknown split, or a document on both sides.
        ImageError, EncryptedPdfError, PageSizeError: A page that cannot be read or is too large.
    """
    _check_arguments(num_calibration_pages, num_heldout_pages, heldout_fraction, [*kinds, default_kind], dpi)
    root = Path(source)
    entries = _list_source(root, default_kind, dpi)
    _check_ids(entries, root)
    _check_texts(entries, root)
    entries = assign_splits(entries, heldout_fraction, seed, str(root))
    entries = _of_kinds(entries, kinds, root)
    check_both_sides(entries, str(root))
    wanted: dict[Split, int | None] = {"calibration": num_calibration_pages, "heldout": num_heldout_pages}
    entries = select(entries, wanted, seed)
    return [_measured(entry, max_pixels) for entry in entries]


def page_image(page: Page) -> Image.Image:
    """Pixels of a page as an upright 8-bit RGB image of ``page.width`` x ``page.height``.

    Raises:
        ImageError, EncryptedPdfError: The file has become unreadable, or its pixels are damaged behind a
            good header.
        PagesError: The table that holds it has become unreadable.
    """
    return ref_image(page.image, page.id)


def image_sha256(page: Page) -> str:
    """SHA-256 (hex) of the encoded image, or of the whole file where it holds several frames or pages."""
    ref = page.image
    if ref.storage in ("parquet", "arrow"):
        return sha256_bytes(read_cell(ref, page.id))
    return _file_sha256(ref.path, ref.path.stat().st_mtime_ns)


def page_digest(page: Page) -> str:
    """SHA-256 (hex) of what the page is: encoded image, frame or PDF page, resolution and ground truth.

    Where the image lies does not count, so the same pages in another folder or layout have the same digest. A
    transcription by a model does not count either: it is a result, not an input.
    """
    ref = page.image
    part = 0 if ref.storage in ("parquet", "arrow") else ref.index
    text = page.text if page.truth_source == "ground_truth" else None
    return sha256_data({"image": image_sha256(page), "part": part, "dpi": ref.dpi, "text": text})


def source_folder(source: str | Path) -> Path:
    """Folder that the files of a source lie below: the source itself, or what holds it if it is a file."""
    root = Path(source)
    return root.parent if root.is_file() else root


def _check_arguments(
    num_calibration_pages: int | None,
    num_heldout_pages: int | None,
    heldout_fraction: float,
    kinds: Collection[str],
    dpi: int,
) -> None:
    unknown = [kind for kind in kinds if kind not in KINDS]
    is_count = {number: number is None or number > 0 for number in (num_calibration_pages, num_heldout_pages)}
    ranges = [
        ("num_calibration_pages", "at least 1", num_calibration_pages, is_count[num_calibration_pages]),
        ("num_heldout_pages", "at least 1", num_heldout_pages, is_count[num_heldout_pages]),
        ("heldout_fraction", "a share between 0 and 1", heldout_fraction, 0 < heldout_fraction < 1),
        ("kinds", f"some of {', '.join(KINDS)}", ", ".join(unknown), not unknown),
        ("dpi", "at least 1", dpi, dpi > 0),
    ]
    for name, expected, given, is_good in ranges:
        if not is_good:
            raise RecipeError(f"pages: {name}", expected=expected, given=given, fix="correct the value")


def _list_source(root: Path, kind: PageKind, dpi: int) -> list[Entry]:
    if root.is_file() and root.suffix.lower() == ".parquet":
        return list_parquet([root], root.parent, kind)
    if not root.is_dir():
        raise PagesError(
            root,
            expected="a folder of pages or a parquet file",
            given="another kind of file" if root.exists() else "nothing of that name",
            fix="name a folder that holds pages of at least two documents",
        )
    if is_saved_dataset(root):
        return list_saved_dataset(root, kind)
    files = visible_files(root)
    tables = [path for path in files if path.suffix.lower() == ".parquet"]
    images = [path for path in files if is_page_file(path)]
    if tables and images:
        raise PagesError(
            root,
            expected="either parquet files or images and PDFs",
            given=f"{len(tables)} parquet files and {len(images)} images or PDFs",
            fix="keep them in folders of their own",
        )
    entries = list_parquet(tables, root, kind) if tables else list_folder(images, root, kind, dpi)
    if not entries:
        suffixes = Counter(path.suffix.lower() or "no suffix" for path in files)
        raise PagesError(
            root,
            expected="images, PDFs or parquet files with at least one page",
            given=", ".join(f"{count} {suffix}" for suffix, count in suffixes.most_common(4))
            or "an empty folder",
            fix="put pages there or correct the path",
        )
    return entries


def _check_ids(entries: list[Entry], root: Path) -> None:
    repeated = [name for name, count in Counter(entry.id for entry in entries).items() if count > 1]
    if repeated:
        raise PagesError(
            f"{root}, page {repeated[0]}",
            expected="an id of its own for every page",
            given=f"{len(repeated)} ids used more than once",
            fix="make the ids unique or leave the column out",
        )


def _check_texts(entries: list[Entry], root: Path) -> None:
    silent = [entry for entry in entries if entry.text is None]
    if silent and len(silent) < len(entries):
        raise PagesError(
            f"{root}, page {silent[0].id}",
            expected="text for every page or for none",
            given=f"{len(silent)} of {len(entries)} pages without text",
            fix="add the missing texts, or remove all of them to let the model transcribe",
        )


def _of_kinds(entries: list[Entry], kinds: Collection[PageKind], root: Path) -> list[Entry]:
    kept = [entry for entry in entries if entry.kind in kinds]
    if not kept:
        raise PagesError(
            root,
            expected=f"pages of kind {' or '.join(kinds)}",
            given=f"only {', '.join(sorted({entry.kind for entry in entries}))}",
            fix="ask for those kinds, or state the kind of each page",
        )
    return kept


def _measured(entry: Entry, max_pixels: int) -> Page:
    width, height = check_size(entry.image, entry.id, max_pixels)
    assert entry.split is not None
    return Page(
        id=entry.id,
        document=entry.document,
        kind=entry.kind,
        split=entry.split,
        image=entry.image,
        width=width,
        height=height,
        text=entry.text,
        truth_source="model" if entry.text is None else "ground_truth",
        lang=entry.lang,
    )


@lru_cache(maxsize=256)
def _file_sha256(path: Path, modified_ns: int) -> str:
    """Kept, because every page of a PDF asks for the digest of the whole file."""
    return sha256_file(path)
