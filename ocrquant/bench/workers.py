"""Pages opened and encoded by worker processes beside the engine, or in its own thread.

Every repeat reads the same files with each number of workers, from encoded images to text. What workers gain
depends on the cores that the engine leaves free and on what a page costs to prepare; the default of the
package for this machine is stated beside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated

from pydantic import Field

from ocrquant.bench.pages import CROPS, checkpoint_folder, heldout_pages
from ocrquant.bench.report import BenchSettings, Report
from ocrquant.bench.timing import interleave, median_interval, ratio
from ocrquant.engine.loading import RuntimeSettings, load_runtime
from ocrquant.engine.preparing import PageTask, default_workers
from ocrquant.engine.sampling import SamplingParams
from ocrquant.engine.transcriber import PageResult, Transcriber
from ocrquant.errors import EngineError

__all__ = ["Settings", "run"]

Positive = Annotated[int, Field(ge=1)]


class Settings(BenchSettings):
    """What is read.

    Attributes:
        model: Checkpoint, or the name of a shipped model.
        source: Pages.
        crops: Pages of a repeat.
        workers: Numbers of worker processes; the first one is what the others are compared with.
        max_requests: Most pages at once.
        max_tokens: Longest answer.
    """

    model: str = "pico"
    source: Path = CROPS
    crops: Positive = 32
    workers: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] = (0, 1, 2)
    max_requests: Positive = 8
    max_tokens: Positive = 256


def run(settings: Settings, repeats: int) -> Report:
    """Measures every number of workers."""
    folder = checkpoint_folder(settings.model)
    runtime = load_runtime(folder, RuntimeSettings(max_requests=settings.max_requests))
    pages = heldout_pages(settings.crops, settings.source)
    tasks = [PageTask(page.id, page.file, page.kind) for page in pages]
    params = SamplingParams(max_tokens=settings.max_tokens)
    made: dict[str, list[PageResult]] = {}
    with ExitStack() as stack:
        arms: dict[str, Callable[[], None]] = {}
        for count in settings.workers:
            reader = stack.enter_context(Transcriber(runtime, count))
            arms[f"{count} workers"] = partial(_read, reader, tasks, params, made, f"{count} workers")
        # Workers start with the first page, before anything counts.
        seconds = interleave(arms, repeats=repeats, warmup=1)
    report = Report("workers", settings, repeats)
    first, texts = next(iter(arms)), {}
    for name, results in made.items():
        texts[name] = {result.page.id: result.text for result in results}
        prepared = sum(result.prepare_seconds for result in results)
        report.results[name] = {
            "pages_per_s": median_interval(seconds[name]).inverse(len(tasks)),
            "tokens_per_s": median_interval(seconds[name]).inverse(sum(r.num_tokens for r in results)),
            f"faster than {first}": ratio(seconds[first], seconds[name]),
            "prepare_seconds_per_page": prepared / len(tasks),
            "texts_equal": texts[name] == texts[first],
        }
    report.results["default_workers"] = default_workers()
    report.notes = [
        "workers are started before the first repeat and kept; no ceiling: see the serving benchmark"
    ]
    return report


def _read(
    reader: Transcriber,
    tasks: Sequence[PageTask],
    params: SamplingParams,
    made: dict[str, list[PageResult]],
    name: str,
) -> None:
    made[name] = list(reader.read(tasks, params))
    for result in made[name]:
        if result.error is not None:
            raise EngineError(f"page {result.page.id}", expected="a text", given=result.error)
