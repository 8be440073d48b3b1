"""Pages through the engine and through `transformers`: output tokens/s and time to the first token.

Every repeat gives one slice of the crops to all arms, and ratios are taken within the repeat; every crop is
used equally often. Times go from decoded images to text, preprocessing counted for all arms alike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import torch
from pydantic import Field

from ocrquant.adapters import drafter_folder
from ocrquant.bench.machine import READ_BYTES, ReadProbe
from ocrquant.bench.pages import CROPS, BenchPage, checkpoint_folder, deal, heldout_pages
from ocrquant.bench.report import BenchSettings, Goal, Report
from ocrquant.bench.serving_arms import NOTE, Arm, EngineArm, Served, TransformersArm
from ocrquant.bench.threads import use_threads
from ocrquant.bench.timing import interleave, median_interval, ratio
from ocrquant.engine.loading import Runtime, RuntimeSettings, load_runtime
from ocrquant.formats import FORMATS

__all__ = ["Settings", "run"]

_GOALS = {1: 15.0, 8: 10.0}
_DRAFTED_GOALS = {1: 30.0, 8: 15.0}
_DRAFTED_GOAL = 1.7
"""Over the same engine without drafts."""
_FIRST_TOKEN_GOAL = 2.0
_BASE = "transformers bf16"
_DRAFTED = "engine with drafts"

Positive = Annotated[int, Field(ge=1)]


class Settings(BenchSettings):
    """What is read, and how.

    Attributes:
        model: Unquantized checkpoint, or the name of a shipped model.
        checkpoint: Folder of an exported checkpoint of the same model, as one more arm.
        drafter: Folder of a drafter, or the name of a shipped one: one more arm, the checkpoint with it.
        source: Pages.
        crops: How many; lines and blocks in the source's own proportion.
        at_once: Numbers of requests at once.
        slice_at_one: Crops of a repeat where there is one request at once; elsewhere it is a batch.
        max_tokens: Longest answer.
        fp32: Whether `transformers` also runs in fp32, the faster baseline where a processor lacks bf16.
        threads: Of torch and of the native kernels; None for what they take by themselves.
        probe_bytes: Buffer that the bandwidth is measured on.
    """

    model: str = "pico"
    checkpoint: Path | None = None
    drafter: str | None = None
    source: Path = CROPS
    crops: Positive = 64
    at_once: tuple[Positive, ...] = (1, 8)
    slice_at_one: Positive = 4
    max_tokens: Positive = 256
    fp32: bool = True
    threads: Positive | None = None
    probe_bytes: Positive = READ_BYTES


def run(settings: Settings, repeats: int) -> Report:
    """Measures all arms at each number of requests."""
    pages = heldout_pages(settings.crops, settings.source)
    folder, room = checkpoint_folder(settings.model), max(settings.at_once)
    arms: dict[str, Arm] = {_BASE: TransformersArm(folder, torch.bfloat16, settings.max_tokens)}
    if settings.fp32:
        arms["transformers fp32"] = TransformersArm(folder, torch.float32, settings.max_tokens)
    runtimes = {"engine bf16": load_runtime(folder, RuntimeSettings(max_requests=room))}
    if settings.checkpoint is not None:
        runtimes["engine checkpoint"] = load_runtime(settings.checkpoint, RuntimeSettings(max_requests=room))
    if settings.drafter is not None:
        drafting = RuntimeSettings(
            max_requests=room, speculation="drafter", drafter=drafter_folder(settings.drafter)
        )
        runtimes[_DRAFTED] = load_runtime(settings.checkpoint or folder, drafting)
    arms |= {name: EngineArm(runtime, settings.max_tokens) for name, runtime in runtimes.items()}
    report = Report("serving", settings, None)
    report.notes = [
        NOTE,
        "end to end from decoded images: preprocessing is counted in every arm, on one thread",
        "first token: seconds from the images of a batch in memory; mean over the requests of a repeat",
        "ceiling: tokens/s at one request if every decoder weight came from memory once a token; the "
        "weights of a small model stay in the cache, so that it may be exceeded",
    ]
    probe = ReadProbe(settings.probe_bytes)
    report.results["memory"] = {name: _memory(runtime) for name, runtime in runtimes.items()}
    with use_threads(settings.threads):
        for at_once in settings.at_once:
            size = settings.slice_at_one if at_once == 1 else at_once
            slices = deal(pages, size, repeats)
            report.repeats = min(report.repeats or len(slices), len(slices))
            report.results[f"{at_once} at once"] = _measure(arms, slices, at_once, report, runtimes, probe)
    return report


def _measure(
    arms: dict[str, Arm],
    slices: Sequence[Sequence[BenchPage]],
    at_once: int,
    report: Report,
    runtimes: dict[str, Runtime],
    probe: ReadProbe,
) -> dict[str, object]:
    served: dict[str, list[Served]] = defaultdict(list)

    def call(name: str, arm: Arm) -> Callable[[], object]:
        def work() -> None:
            # The warm-up reads the last slice, the repeats all of them in order.
            number = len(served[name]) - 1
            served[name].append(arm(slices[number], at_once))

        return work

    calls: dict[str, Callable[[], object]] = {name: call(name, arm) for name, arm in arms.items()}
    seconds = interleave({"read": probe, **calls}, repeats=len(slices), warmup=1)
    per_token = {
        name: [s / one.num_tokens for s, one in zip(seconds[name], served[name][1:], strict=True)]
        for name in arms
    }
    first = {name: [fmean(one.first_token_s) for one in served[name][1:]] for name in arms}
    bandwidth = median_interval(seconds["read"]).inverse(probe.num_bytes)
    found: dict[str, object] = {"read_bytes_per_s": bandwidth, "crops_per_repeat": len(slices[0])}
    baselines = [name for name in arms if name not in runtimes]
    found["faster_baseline"] = min(baselines, key=lambda name: median_interval(per_token[name]).median)
    for name in arms:
        entry: dict[str, Any] = {
            "tokens_per_s": median_interval(per_token[name]).inverse(1.0),
            "first_token_s": median_interval(first[name]),
            "last_first_token_s": median_interval([max(one.first_token_s) for one in served[name][1:]]),
            "num_tokens": sum(one.num_tokens for one in served[name][1:]),
            "texts_equal_to_transformers_bf16": _equal(served[name][1:], served[_BASE][1:]),
        }
        for base in baselines if name in runtimes else ():
            entry[f"tokens_per_s over {base}"] = ratio(per_token[base], per_token[name])
            entry[f"first token sooner than {base}"] = ratio(first[base], first[name])
        if name == _DRAFTED:
            plain = [other for other in runtimes if other != _DRAFTED][-1]
            entry[f"tokens_per_s over {plain}"] = ratio(per_token[plain], per_token[name])
            if at_once == 1:
                label = f"{name} over {plain}, 1 at once: tokens/s"
                report.goals.append(Goal(label, entry[f"tokens_per_s over {plain}"], _DRAFTED_GOAL))
        if name in runtimes:
            report.goals += _goals(name, at_once, entry)
            entry["ceiling_tokens_per_s"] = bandwidth.median / _decoder_bytes(runtimes[name])
        found[name] = entry
    return found


def _goals(name: str, at_once: int, entry: dict[str, Any]) -> list[Goal]:
    label = f"{name} over {_BASE}, {at_once} at once"
    faster, sooner = entry[f"tokens_per_s over {_BASE}"], entry[f"first token sooner than {_BASE}"]
    goals = [Goal(f"{label}: time to first token", sooner, _FIRST_TOKEN_GOAL)]
    wanted = (_DRAFTED_GOALS if name == _DRAFTED else _GOALS).get(at_once)
    if wanted is not None:
        goals.insert(0, Goal(f"{label}: tokens/s", faster, wanted))
    return goals


def _equal(ours: Sequence[Served], theirs: Sequence[Served]) -> str:
    pairs = [pair for a, b in zip(ours, theirs, strict=True) for pair in zip(a.texts, b.texts, strict=True)]
    return f"{sum(a == b for a, b in pairs)} of {len(pairs)}"


def _decoder_bytes(runtime: Runtime) -> float:
    """Weights that a token needs: every linear that is not the vision side's, scales counted."""
    records = [record for record in runtime.model.linears if ".visual." not in record.name]
    return sum(r.out_features * r.in_features * FORMATS[r.stored].bits_per_weight / 8 for r in records)


def _memory(runtime: Runtime) -> dict[str, object]:
    memory = runtime.memory
    return {
        "weight_bytes": memory.weight_bytes,
        "stored_bytes": memory.stored_bytes,
        "weights_over_stored": memory.weights_over_stored,
        "bytes_per_parameter": memory.bytes_per_parameter,
    }
