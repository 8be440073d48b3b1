"""Thousands of requests of random sizes, with cancellations, a full queue and pages that run out.

Every answer is compared with that of the same request alone in a roomy engine: whole, cut at its limit, or
the beginning of it for a request that was cancelled. After every step the pools are checked against who holds
what; the memory of the process is noted again and again.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from ocrquant.bench.pages import CROPS, checkpoint_folder, heldout_pages
from ocrquant.bench.report import BenchSettings, Goal, Report
from ocrquant.engine.engine import Engine
from ocrquant.engine.loading import RuntimeSettings, load_runtime
from ocrquant.engine.pages import page_prompt
from ocrquant.engine.prompt import Prompt
from ocrquant.engine.request import FinishReason, RequestResult
from ocrquant.engine.sampling import SamplingParams
from ocrquant.errors import EngineError, QueueFullError

__all__ = ["Settings", "run"]

_GROWTH_KIB = 1024.0
"""Per thousand requests: what allocators and the interpreter may still take in the second half."""

Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]


class Settings(BenchSettings):
    """How much is asked of the engine.

    Attributes:
        model: Checkpoint, or the name of a shipped model.
        source: Pages.
        crops: Pages that requests are drawn from.
        requests: All requests.
        max_requests: Most that run at once.
        queue_limit: Most that wait.
        num_pages: Pages of keys and values, too few for all that run; raised to what one request needs.
        prefix_cache_bytes: Memory for kept prefixes.
        max_tokens: Longest answer; each request draws its own limit up to it.
        cancelled: Share of steps in which a request is cancelled.
        sampled: Share of requests with a temperature.
        seed: Of all draws.
    """

    model: str = "pico"
    source: Path = CROPS
    crops: Positive = 48
    requests: Positive = 2000
    max_requests: Positive = 16
    queue_limit: Positive = 24
    num_pages: Positive = 32
    prefix_cache_bytes: Annotated[int, Field(ge=0)] = 4 << 20
    max_tokens: Positive = 96
    cancelled: Share = 0.02
    sampled: Share = 0.25
    seed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """A request with the answer that it gets alone."""

    prompt: Prompt
    temperature: float
    answer: RequestResult


@dataclass(slots=True)
class _Tally:
    """What happened.

    Attributes:
        counts: Events by name.
        wrong: Requests whose answer is not the one that they get alone.
        resident_kib: Memory of the process and requests that were over by then.
    """

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[dict[str, object]] = field(default_factory=list)
    resident_kib: list[tuple[int, float]] = field(default_factory=list)


def run(settings: Settings, repeats: int) -> Report:
    """Runs all requests; nothing is repeated."""
    known = _answers_alone(settings)
    engine, num_pages = _tight_engine(settings, known)
    tally, began = _Tally(), time.perf_counter()
    _serve(engine, settings, known, tally)
    seconds = time.perf_counter() - began
    engine.check_integrity()
    kept = 0 if engine.prefixes is None else engine.prefixes.nbytes
    half = [point for point in tally.resident_kib if point[0] >= settings.requests // 2]
    slope = 1000 * _slope(half)
    report = Report("soak", settings, None)
    report.results = {
        "num_pages": num_pages,
        "seconds": seconds,
        "counts": dict(sorted(tally.counts.items())),
        "wrong": tally.wrong,
        "kept_prefix_bytes": kept,
        "resident_kib": {
            "first": tally.resident_kib[0][1],
            "half": half[0][1] if half else None,
            "last": tally.resident_kib[-1][1],
            "slope_per_1000_requests_in_second_half": slope,
        },
    }
    report.goals = [
        Goal("requests with a wrong answer", len(tally.wrong), at_most=0),
        Goal("growth of memory in the second half, KiB per 1000 requests", slope, at_most=_GROWTH_KIB),
    ]
    report.goals += [
        Goal(f"{event}, so that it was tried", tally.counts[event], at_least=1)
        for event in ("cancelled", "refused: queue full", "preemptions")
    ]
    report.notes = [
        "pools and holders are compared after every step; a mismatch ends the run",
        "answers are compared token by token with those of the same request alone",
    ]
    return report


def _answers_alone(settings: Settings) -> list[_Known]:
    runtime = load_runtime(checkpoint_folder(settings.model), RuntimeSettings(max_requests=1))
    known: list[_Known] = []
    for page in heldout_pages(settings.crops, settings.source):
        prompt = page_prompt(runtime.processor.encode(page.image, page.kind))
        for temperature in (0.0, 0.8):
            params = _params(len(known), temperature, settings.max_tokens)
            name = runtime.engine.submit(prompt, params)
            known.append(_Known(prompt, temperature, runtime.engine.run_until_done()[name]))
    return known


def _params(number: int, temperature: float, limit: int) -> SamplingParams:
    return SamplingParams(temperature=temperature, top_p=0.95, seed=number, max_tokens=limit)


def _tight_engine(settings: Settings, known: Sequence[_Known]) -> tuple[Engine, int]:
    page_size = RuntimeSettings().page_size
    longest = max(len(one.prompt) for one in known) + settings.max_tokens
    num_pages = max(settings.num_pages, -(-longest // page_size))
    tight = RuntimeSettings(
        max_requests=settings.max_requests,
        max_length=longest,
        num_pages=num_pages,
        queue_limit=settings.queue_limit,
        prefix_cache_bytes=settings.prefix_cache_bytes,
    )
    return load_runtime(checkpoint_folder(settings.model), tight).engine, num_pages


def _serve(engine: Engine, settings: Settings, known: Sequence[_Known], tally: _Tally) -> None:
    draw, live, submitted = random.Random(settings.seed), dict[str, tuple[int, int]](), 0
    tally.resident_kib.append((0, _resident_kib()))
    while submitted < settings.requests or engine.has_work:
        for _ in range(draw.randint(0, 3)):
            if submitted == settings.requests:
                break
            number = 2 * draw.randrange(len(known) // 2) + (draw.random() < settings.sampled)
            limit = draw.randint(1, settings.max_tokens)
            try:
                params = _params(number, known[number].temperature, limit)
                live[engine.submit(known[number].prompt, params)] = number, limit
            except QueueFullError:
                tally.counts["refused: queue full"] += 1
                break
            submitted += 1
        if live and draw.random() < settings.cancelled:
            engine.cancel(draw.choice(sorted(live)))
        for output in engine.step():
            if output.result is not None:
                number, limit = live.pop(output.id)
                _judge(output.id, known[number], limit, output.result, tally)
        engine.check_integrity()
    if live:
        raise EngineError("soak", expected="an answer to every request", given=f"none to {len(live)}")


def _judge(name: str, known: _Known, limit: int, result: RequestResult, tally: _Tally) -> None:
    reason, answer = result.finish_reason, known.answer
    tally.counts[str(reason)] += 1
    tally.counts["preemptions"] += result.num_preemptions
    tally.counts["with a kept prefix"] += result.num_cached > 0
    tally.counts["tokens"] += result.num_generated
    if reason is FinishReason.CANCELLED:
        is_right = result.ids == answer.ids[: len(result.ids)]
    elif limit >= answer.num_generated:
        is_right = (result.ids, result.text, reason) == (answer.ids, answer.text, answer.finish_reason)
    else:
        is_right = result.ids == answer.ids[:limit] and reason is FinishReason.LENGTH
    if not is_right:
        tally.wrong.append(
            {"request": name, "reason": str(reason), "text": result.text, "alone": answer.text}
        )
    over = sum(tally.counts[str(reason)] for reason in FinishReason)
    if over % 20 == 0:
        tally.resident_kib.append((over, _resident_kib()))


def _slope(points: Sequence[tuple[int, float]]) -> float:
    """Of the straight line through points by least squares; 0 for a single one."""
    if len(points) < 2:
        return 0.0
    x, y = np.array(points, np.float64).T
    return float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())


def _resident_kib() -> float:
    """Resident memory of this process; 0 where the system does not say."""
    path = Path("/proc/self/statm")
    if not path.exists():
        return 0.0
    return int(path.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1024
