"""What drafts do to the text of a checkpoint, which is nothing, and how many of them it accepts.

The same engine reads all pages without drafts and with those of each drafter. Rows of a window and single
rows may be summed in other orders in bf16, so that a choice between two logits that are all but equal may
fall the other way. As long as tokens are equal both saw the same, and how much the distance of the two
largest logits differs there is the noise; where texts part, the distance must lie within it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from ocrquant.adapters import drafter_folder
from ocrquant.bench.correctness import read_together
from ocrquant.bench.pages import CROPS, BenchPage, checkpoint_folder, heldout_pages
from ocrquant.bench.report import BenchSettings, Goal, Report
from ocrquant.bench.threads import use_threads
from ocrquant.engine.loading import RuntimeSettings, load_runtime
from ocrquant.engine.request import RequestResult

__all__ = ["Settings", "run"]

Positive = Annotated[int, Field(ge=1)]

_GOALS = {"dflash": 6.0, "dflash2": 7.0}
"""Tokens a step on blocks at 16 rows a window; the published drafters have 9 and 12 (OCRia-1, 2026-11-04)."""


class Settings(BenchSettings):
    """What is read.

    Attributes:
        checkpoint: Folder of a checkpoint, or the name of a shipped model.
        drafters: Folders of drafters for it, or names of shipped ones.
        source: Pages.
        crops: How many.
        at_once: Requests that are read together.
        window: Rows of a window; the whole block by default, whatever would be fastest.
        max_tokens: Longest answer.
        threads: Of torch and of the native kernels; None for what they take by themselves.
    """

    checkpoint: str = "pico"
    drafters: tuple[str, ...] = ("pico-dflash", "pico-dflash2")
    source: Path = CROPS
    crops: Positive = 200
    at_once: Positive = 8
    window: Positive = 16
    max_tokens: Positive = 640
    threads: Positive | None = None


def run(settings: Settings, repeats: int) -> Report:
    """Reads all pages once with each drafter; nothing is timed or repeated."""
    pages, folder = heldout_pages(settings.crops, settings.source), checkpoint_folder(settings.checkpoint)
    plain = RuntimeSettings(max_requests=settings.at_once)
    report = Report("drafts", settings, None)
    report.results = {"pages": len(pages)}
    with use_threads(settings.threads):
        alone = read_together(load_runtime(folder, plain), pages, settings.max_tokens)
        report.results["tokens"] = sum(result.num_generated for result in alone)
        for name in settings.drafters:
            chosen = replace(
                plain, speculation="drafter", drafter=drafter_folder(name), window=settings.window
            )
            runtime = load_runtime(folder, chosen)
            drafted = read_together(runtime, pages, settings.max_tokens)
            assert runtime.drafter is not None, "asked for"
            kind = "dflash2" if runtime.drafter.config.is_second else "dflash"
            found = _compare(pages, alone, drafted)
            report.results[name] = found
            blocks = found["tokens_a_step"].get("block")
            if blocks is not None:
                report.goals.append(Goal(f"{name}: tokens a step on blocks", blocks, _GOALS[kind]))
            beyond = sum(not parted["within_noise"] for parted in found["differences"])
            report.goals.append(Goal(f"{name}: texts that part beyond the noise", beyond, at_most=0))
    report.notes = [
        "tokens a step: tokens behind the first over windows, so what one verification emits",
        "noise: largest change by drafts of the distance between the two largest logits, over all places of "
        "equal tokens up to where texts part",
    ]
    return report


def _compare(
    pages: Sequence[BenchPage], alone: Sequence[RequestResult], drafted: Sequence[RequestResult]
) -> dict[str, Any]:
    noise: list[float] = []
    differences: list[dict[str, Any]] = []
    windows: dict[str, int] = {}
    emitted: dict[str, int] = {}
    for page, one, other in zip(pages, alone, drafted, strict=True):
        windows[page.kind] = windows.get(page.kind, 0) + other.drafts.num_windows
        # The first token comes with the prompt. Guesses that agree behind the end are of no use to anybody.
        emitted[page.kind] = emitted.get(page.kind, 0) + other.num_generated - 1
        pairs = list(zip(one.ids, other.ids, strict=False))
        place = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
        noise += [abs(a - b) for a, b in zip(one.gaps[:place], other.gaps[:place], strict=True)]
        if one.ids != other.ids:
            # An answer that ended there has no gap of its end token; the other one's is to its second choice.
            gaps = [float(result.gaps[place]) for result in (one, other) if place < len(result.gaps)]
            differences.append({"page": page.id, "position": place, "top_two_gaps": gaps})
    largest = max(noise, default=0.0)
    for parted in differences:
        parted["within_noise"] = min(parted["top_two_gaps"]) <= largest
    kinds = {kind: emitted[kind] / max(1, windows[kind]) for kind in sorted(windows)}
    return {
        "tokens_a_step": kinds | {"all": sum(emitted.values()) / max(1, sum(windows.values()))},
        "windows": windows,
        "equal_texts": len(pages) - len(differences),
        "differences": differences,
        "noise": {
            "places": len(noise),
            "largest_gap_change": largest,
            "gap_change_at_99.9_percent": float(np.quantile(noise or [0.0], 0.999)),
        },
    }
