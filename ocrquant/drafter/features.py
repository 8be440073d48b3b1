"""The cache of features on disk: pages in chunks, one file a chunk, made where it is missing.

A file depends on the pages of its chunk alone, so that several processes share the chunks and a stopped run
goes on at the first missing one. Knows chunks and files; the engine is behind `harvest`.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from ocrquant.artifacts import write_bytes
from ocrquant.distributed import ranks
from ocrquant.drafter.harvest import harvest
from ocrquant.drafter.store import write_shard
from ocrquant.engine.loading import Runtime
from ocrquant.engine.preparing import PageTask
from ocrquant.progress import progress_bar

__all__ = ["cache_features", "chunk_size", "claim_folder"]

_CHUNK_BYTES = 1 << 30
_TYPICAL_TOKENS = 2048
_INPUTS = "inputs.json"


def chunk_size(num_taps: int, hidden_size: int) -> int:
    """Pages of a chunk: as many as fill about 1 GiB of bf16 features at 2,048 tokens a page, 1 to 256."""
    return max(1, min(256, _CHUNK_BYTES // (num_taps * hidden_size * 2 * _TYPICAL_TOKENS)))


def claim_folder(folder: Path, inputs: Mapping[str, str]) -> bool:
    """Makes a folder for results of some inputs, and empties it first where it holds those of others.

    Args:
        folder: Which belongs to the caller altogether.
        inputs: What its content is made from, by name.

    Returns:
        Whether it held something made from the same inputs.
    """
    record = json.dumps(dict(inputs), indent=1, sort_keys=True) + "\n"
    path = folder / _INPUTS
    is_same = path.is_file() and path.read_text(encoding="utf-8") == record
    if not is_same and ranks().is_first:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        write_bytes(path, record.encode())
    ranks().wait()
    return is_same


def cache_features(
    runtime: Runtime,
    pages: Sequence[PageTask],
    taps: tuple[int, ...],
    folder: Path,
    *,
    hidden_size: int,
    max_tokens: int,
    title: str,
    seed: int = 0,
) -> None:
    """Reads pages with the target and keeps answers and features; chunks that are there are left alone.

    Args:
        runtime: The target.
        pages: What to read.
        taps: See `harvest`.
        folder: Where the files go; it exists.
        hidden_size: Of the target.
        max_tokens: Longest answer.
        title: What a progress bar calls it.
        seed: Of the order: a stopped cache holds pages of all kinds.

    Raises:
        OutputError: The folder is not writable or the disk is full.
    """
    order = list(pages)
    random.Random(seed).shuffle(order)
    size = chunk_size(len(taps), hidden_size)
    chunks = [order[first : first + size] for first in range(0, len(order), size)]
    mine = ranks().share(range(len(chunks)))
    numbers = [number for number in mine if not _path(folder, number).exists()]
    with progress_bar(title, len(mine), "chunks", done=len(mine) - len(numbers)) as advance:
        for number in numbers:
            found = list(harvest(runtime, chunks[number], taps, max_tokens=max_tokens))
            # Answers come as they end; in the order of the pages the file is the same each time.
            places = {page.id: place for place, page in enumerate(chunks[number])}
            write_shard(_path(folder, number), sorted(found, key=lambda one: places[one.page]))
            advance(1)
    ranks().wait()


def _path(folder: Path, number: int) -> Path:
    return folder / f"features-{number:05d}.safetensors"
