"""Pages in tables: parquet files and folders that `datasets` saved.

Knows columns and how a cell holds an image. Reads with pyarrow alone, because importing `datasets` loads
torch.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ocrquant.errors import ImageError, PagesError
from ocrquant.pages.entries import SPLIT_NAMES, Entry, parse_kind, parse_split, truth_of_parts
from ocrquant.pages.page import ImageRef, PageKind, Storage

__all__ = ["is_saved_dataset", "list_parquet", "list_saved_dataset", "read_cell"]

_SPLITS_FILE = "dataset_dict.json"
_STATE_FILE = "state.json"
# Columns beside the image; all optional, all text. `doc` is another name for `document`.
_COLUMNS = ("id", "document", "doc", "group", "kind", "split", "text", "lang")


def is_saved_dataset(folder: Path) -> bool:
    """Whether `datasets.Dataset.save_to_disk` or `DatasetDict.save_to_disk` wrote the folder."""
    return (folder / _SPLITS_FILE).is_file() or (folder / _STATE_FILE).is_file()


def list_parquet(files: list[Path], root: Path, default_kind: PageKind) -> list[Entry]:
    """One entry a row; ``train-*.parquet``, ``test-*.parquet`` and so on state a split by their name.

    Raises:
        PagesError: Not parquet, no image column, or columns of a wrong type.
    """
    entries: list[Entry] = []
    for path in files:
        name = path.relative_to(root).with_suffix("").as_posix()
        first_word = re.split(r"[-.]", path.stem)[0]
        split = first_word if first_word in SPLIT_NAMES else None
        entries += _list_table(path, "parquet", name, split, default_kind)
    return entries


def list_saved_dataset(folder: Path, default_kind: PageKind) -> list[Entry]:
    """One entry a row of a folder that `datasets` saved; the splits of a `DatasetDict` count.

    Raises:
        PagesError: As `list_parquet`.
    """
    splits: list[str | None] = [None]
    if (folder / _SPLITS_FILE).is_file():
        splits = [str(split) for split in _read_json(folder / _SPLITS_FILE, "splits")]
    entries: list[Entry] = []
    for split in splits:
        part = folder / split if split else folder
        for file in _read_json(part / _STATE_FILE, "_data_files"):
            path = part / str(file["filename"])
            name = path.relative_to(folder).with_suffix("").as_posix()
            entries += _list_table(path, "arrow", name, split, default_kind)
    return entries


def read_cell(ref: ImageRef, name: str) -> bytes:
    """Encoded image in one row of a table.

    Raises:
        PagesError: The table is gone or damaged.
        ImageError: The cell is empty, or names a file that is not there.
    """
    path = ref.path
    try:
        if ref.storage == "arrow":
            value = _arrow_table(path, _stamp(path)).column("image")[ref.index].as_py()
        else:
            group, row = _row_group(path, ref.index)
            value = _parquet_images(path, _stamp(path), group)[row].as_py()
    except (OSError, pa.ArrowException, IndexError) as error:
        raise _unreadable(path, error) from None
    data, beside = (value.get("bytes"), value.get("path")) if isinstance(value, dict) else (value, None)
    if data is not None:
        return bytes(data)
    try:
        return (path.parent / (beside or "")).read_bytes()
    except OSError:
        given = f"a path to {beside}, which cannot be read" if beside else "an empty cell"
        raise ImageError(name, expected="image bytes in the table", given=given, fix="embed them") from None


def _list_table(
    path: Path, storage: Storage, name: str, split: str | None, default_kind: PageKind
) -> list[Entry]:
    try:
        if storage == "arrow":
            table = _arrow_table(path, _stamp(path))
            columns = _text_columns(path, table.schema)
            num_rows = table.num_rows
        else:
            columns = _text_columns(path, pq.read_schema(path))
            table = pq.read_table(path, columns=columns)
            num_rows = pq.read_metadata(path).num_rows
        rows = table.select(columns).to_pylist() if columns else [{}] * num_rows
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(path, error) from None
    return [
        _entry(row, f"{name}:{number}", ImageRef(path, storage, number), split, default_kind)
        for number, row in enumerate(rows)
    ]


def _entry(
    row: dict[str, str | None], name: str, image: ImageRef, split: str | None, default_kind: PageKind
) -> Entry:
    document = row.get("document") or row.get("doc") or name
    return Entry(
        id=row.get("id") or name,
        document=document,
        group=row.get("group") or document,
        kind=parse_kind(row.get("kind"), default_kind, name),
        split=parse_split(row.get("split") or split, name),
        text=truth_of_parts(row.get("text"), 1, name)[0],
        lang=row.get("lang") or "",
        image=image,
    )


def _text_columns(path: Path, schema: pa.Schema) -> list[str]:
    """Names of the text columns that are there, after a look at every type."""
    image = schema.field("image").type if "image" in schema.names else None
    if image is None or not _holds_bytes(image):
        raise PagesError(
            path,
            expected="a column image of encoded bytes (binary, or a struct with bytes and path)",
            given=f"columns {', '.join(schema.names)}" if image is None else f"type {image}",
            fix="save the images with datasets.Image or as PNG bytes",
        )
    names = [name for name in _COLUMNS if name in schema.names]
    for name in names:
        kind = schema.field(name).type
        if not (pa.types.is_null(kind) or _is_string(kind)):
            raise PagesError(path, expected=f"column {name} of strings", given=kind, fix="cast the column")
    return names


def _holds_bytes(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(field.name == "bytes" and _holds_bytes(field.type) for field in kind)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_string(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _stamp(path: Path) -> tuple[int, int]:
    """Part of every cache key, so that a rewritten file is read again."""
    status = path.stat()
    return status.st_mtime_ns, status.st_size


@lru_cache(maxsize=8)
def _arrow_table(path: Path, stamp: tuple[int, int]) -> pa.Table:
    """Memory-mapped: rows are paged in when they are asked for."""
    return pa.ipc.open_stream(pa.memory_map(str(path))).read_all()


@lru_cache(maxsize=2)
def _parquet_images(path: Path, stamp: tuple[int, int], group: int) -> pa.ChunkedArray:
    """Image column of one row group; pages are mostly read in order, so the last groups are kept."""
    return pq.ParquetFile(path).read_row_group(group, columns=["image"]).column("image")


def _row_group(path: Path, row: int) -> tuple[int, int]:
    """Row group that holds a row of the file, and the row's number in it."""
    for group, size in enumerate(_group_sizes(path, _stamp(path))):
        if row < size:
            return group, row
        row -= size
    raise IndexError(f"row {row} past the end")


@lru_cache(maxsize=64)
def _group_sizes(path: Path, stamp: tuple[int, int]) -> tuple[int, ...]:
    metadata = pq.read_metadata(path)
    return tuple(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))


def _read_json(path: Path, key: str) -> list[Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))[key]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _unreadable(path, error) from None
    return list(value)


def _unreadable(path: Path, error: Exception) -> PagesError:
    return PagesError(
        path,
        expected="a readable table as datasets or pyarrow writes it",
        given=f"{type(error).__name__}: {error}",
        fix="write it again",
    )
