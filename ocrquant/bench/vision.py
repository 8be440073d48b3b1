"""The vision tower on pages packed into one sequence, and page by page.

The linears of a tower read each weight once a call, so packing saves reads and starts of kernels; what each
image gives must not change by a bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from ocrquant.bench.machine import READ_BYTES, ReadProbe
from ocrquant.bench.pages import CROPS, checkpoint_folder, heldout_pages
from ocrquant.bench.report import BenchSettings, Report
from ocrquant.bench.threads import use_threads
from ocrquant.bench.timing import interleave, median_interval, ratio
from ocrquant.engine.loading import RuntimeSettings, load_runtime
from ocrquant.models.decoder import Decoder
from ocrquant.models.processing import EncodedPage, PixelTable

__all__ = ["Settings", "run"]

_ALONE = "one by one"

Positive = Annotated[int, Field(ge=1)]


class Settings(BenchSettings):
    """What is encoded.

    Attributes:
        model: Checkpoint, or the name of a shipped model.
        source: Pages.
        crops: Pages of a repeat.
        packed: Numbers of pages in one sequence.
        threads: Of the native kernels; None for what they take by themselves.
        probe_bytes: Buffer that the bandwidth is measured on.
    """

    model: str = "pico"
    source: Path = CROPS
    crops: Positive = 32
    packed: tuple[Positive, ...] = (8, 32)
    threads: Positive | None = None
    probe_bytes: Positive = READ_BYTES


def run(settings: Settings, repeats: int) -> Report:
    """Measures all sizes of batches."""
    runtime = load_runtime(checkpoint_folder(settings.model), RuntimeSettings(max_requests=1))
    processor, model = runtime.processor, runtime.model
    pages = [
        processor.encode(page.image, page.kind) for page in heldout_pages(settings.crops, settings.source)
    ]
    table = PixelTable(processor.encoder.images, torch.bfloat16)
    arms: dict[str, Callable[[], list[Tensor]]] = {_ALONE: partial(_encode, model, table, pages, 1)}
    arms |= {f"packed {size}": partial(_encode, model, table, pages, size) for size in settings.packed}
    probe, report = ReadProbe(settings.probe_bytes), Report("vision", settings, repeats)
    with use_threads(settings.threads):
        alone = torch.cat(arms[_ALONE]())
        equal = {name: bool(torch.equal(torch.cat(arm()), alone)) for name, arm in arms.items()}
        seconds = interleave({"read": probe, **arms}, repeats=repeats, warmup=1)
    num_patches = sum(len(page.patches) for page in pages)
    report.results = {
        "read_bytes_per_s": median_interval(seconds["read"]).inverse(probe.num_bytes),
        "patches_per_crop": num_patches / len(pages),
    }
    for name in arms:
        report.results[name] = {
            "seconds_per_crop": median_interval(seconds[name]).scaled(1.0 / len(pages)),
            "patches_per_s": median_interval(seconds[name]).inverse(num_patches),
            "speedup": ratio(seconds[_ALONE], seconds[name]),
            "bits_equal": equal[name],
        }
    report.notes = [
        "from encoded pages (patches in bytes) to image tokens: pixel values, tower, merger",
        "no memory ceiling: with the patches of a crop the tower is bound by arithmetic",
    ]
    return report


def _encode(model: Decoder, table: PixelTable, pages: Sequence[EncodedPage], size: int) -> list[Tensor]:
    made = []
    for first in range(0, len(pages), size):
        batch = pages[first : first + size]
        pixels = table.pack([page.patches for page in batch])
        made.append(model.encode_images(pixels, [page.grid for page in batch]).clone())
    return made
