"""What a decode step of Qwen3.5 shape would take on a machine by its limits: a model, nothing is measured.

Rows: plain steps, eager and captured, in bf16 and in a mixed plan; windows of DFlash and DFlash2 with states
kept per draft (native) and as records (ReplaySSM). Beside them what was published of a B200. Knows which arms
are worth showing; `ocrquant.cost` computes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from ocrquant.bench.report import BenchSettings, Report
from ocrquant.cost import (
    DRAFTERS,
    MODELS,
    PLANS,
    TARGETS,
    Acceptance,
    Decoding,
    Estimate,
    Load,
    Target,
    estimate,
)

__all__ = ["PUBLISHED", "Settings", "render", "run"]

Positive = Annotated[int, Field(ge=1)]

PUBLISHED: tuple[tuple[str, str], ...] = (
    ("decoding, one B200, before and after", "285 -> 2800 tokens/s, about 10 x"),
    ("acceptance length, DFlash -> DFlash2", "9 -> more than 12"),
    ("DFlash2 at 8 to 12 requests, each", "more than 1400 tokens/s, without it about 200"),
    ("step with 32 requests", "6.07 ms, 2.10 ms of it in Gated DeltaNet"),
)
"""LlamaIndex on serving OCRia-1, 2026-11-04. Its model and its counting of requests are not stated."""

_DFLASH, _DFLASH2 = 9.0, 12.0
"""The published acceptance lengths of `PUBLISHED`."""
_GIGA, _TERA = 1e9, 1e12

_NOTES = (
    "modelled: lower bounds from stated limits, nothing here was measured",
    "a part takes the longer of reading and computing; parts follow one another; left out: elementwise work, "
    "activations, arithmetic of the recurrence, the host",
    "weights: products that wait for their weights; compute: products that wait for arithmetic; draft: the "
    "bf16 drafter (five layers with windows of 4096, one without), its cache and the head once more",
    "a window is verified at once: rows = requests x window; kv is read once a window",
    "folds: share of steps in which ReplaySSM writes a state, from the stationary distribution of its cursor",
    "DFlash2's convolutions and selector are not counted; published: 1.3 to 1.5 % of a step",
    "best: window with most tokens/s, from 1 to the block, at this acceptance by position",
)


class Settings(BenchSettings):
    """What is modelled.

    Attributes:
        target: A machine of `ocrquant.cost.TARGETS`.
        models: Of `ocrquant.cost.MODELS`.
        plans: Of `ocrquant.cost.PLANS`; the first is the base that others are compared with.
        requests: Numbers of requests at once.
        context: Tokens of each request whose keys and values are read.
        block: T, rows of a window with drafts.
        acceptance: Tokens of a step with drafts on average, or a file with measured ones by position (see
            `Acceptance.load`); None for what was published, 9 for DFlash and 12 for DFlash2.
        history: Records of ReplaySSM; None for four windows.
    """

    target: Literal["b200", "h200", "rtx-pro-6000", "cpu"] = "b200"
    models: tuple[Literal["qwen3.5-9b", "qwen3.5-4b"], ...] = ("qwen3.5-9b", "qwen3.5-4b")
    plans: tuple[Literal["bf16", "fp8", "mixed", "mixed, fp8 head"], ...] = ("bf16", "mixed")
    requests: tuple[Positive, ...] = (1, 8, 32)
    context: Annotated[int, Field(ge=0)] = 6000
    block: Annotated[int, Field(ge=2, le=64)] = 16
    acceptance: float | str | None = None
    history: Positive | None = None


@dataclass(frozen=True, slots=True)
class _Arm:
    """One row of the table but for the number of requests."""

    name: str
    decoding: Decoding


def run(settings: Settings, repeats: int) -> Report:
    """Models every arm; `repeats` is not looked at.

    Raises:
        RecipeError: The acceptance is out of range for the block.
        ArtifactError: The file with the acceptance cannot be read.
    """
    del repeats
    target, accepted = TARGETS[settings.target], _acceptance(settings)
    report = Report("roofline", settings, None)
    rows = []
    for model in settings.models:
        for requests in settings.requests:
            base: Estimate | None = None
            for arm in _arms(model, settings, accepted):
                found = _estimate(arm.decoding, target, requests, settings)
                base = base or found
                best = _best_window(arm.decoding, target, requests, settings)
                rows.append(
                    {"model": model, "requests": requests, "arm": arm.name, **_row(found, base), "best": best}
                )
    report.results = {
        "modelled": True,
        "target": {"name": target.name, "stated_by": target.stated_by, "replay_us": target.replay_us},
        "rows": rows,
        "published": [{"what": what, "said": said} for what, said in PUBLISHED],
    }
    report.notes = [*_NOTES, *(note for p in PLANS["mixed"].values() if (note := target.note(p)))]
    return report


def _acceptance(settings: Settings) -> dict[str, Acceptance]:
    """Acceptance of each drafter that is shown, by its name in the table."""
    given = settings.acceptance
    if given is None:
        lengths = {"DFlash": _DFLASH, "DFlash2": _DFLASH2}
        return {
            f"{name} at {length:g}": Acceptance.of_length(length, settings.block)
            for name, length in lengths.items()
        }
    if isinstance(given, float):
        return {f"DFlash at {given:g}": Acceptance.of_length(given, settings.block)}
    measured = Acceptance.load(Path(given))
    tokens = measured.tokens(min(settings.block, measured.max_block))
    return {f"DFlash at {tokens:.3g}, measured": measured}


def _arms(model: str, settings: Settings, accepted: Mapping[str, Acceptance]) -> Iterator[_Arm]:
    shape = MODELS[model]
    for number, plan in enumerate(settings.plans):
        base = Decoding(model=shape, plan=PLANS[plan])
        if number == 0:
            yield _Arm(f"{plan}, eager", Decoding(model=shape, plan=PLANS[plan], captured=False))
        yield _Arm(plan, base)
    last = settings.plans[-1]
    for name, acceptance in accepted.items():
        for state in ("native", "replay"):
            yield _Arm(
                f"{last}, {name}, {state}",
                Decoding(
                    model=shape,
                    plan=PLANS[last],
                    state="native" if state == "native" else "replay",
                    acceptance=acceptance,
                    drafter=DRAFTERS[model],
                    history=settings.history,
                ),
            )


def _estimate(
    decoding: Decoding, target: Target, requests: int, settings: Settings, window: int | None = None
) -> Estimate:
    if decoding.acceptance is None:
        window = 1
    elif window is None:
        window = min(settings.block, decoding.acceptance.max_block)
    return estimate(decoding, target, Load(batch=requests, window=window, context=settings.context))


def _best_window(decoding: Decoding, target: Target, requests: int, settings: Settings) -> int:
    """Rows of the window with most tokens/s; 1 stands for no drafts at all."""
    if decoding.acceptance is None:
        return 1
    plain = Decoding(model=decoding.model, plan=decoding.plan)
    rates = {1: _estimate(plain, target, requests, settings).tokens_per_s}
    for window in range(2, min(settings.block, decoding.acceptance.max_block) + 1):
        rates[window] = _estimate(decoding, target, requests, settings, window).tokens_per_s
    return max(rates, key=rates.__getitem__)


def _row(found: Estimate, base: Estimate) -> dict[str, Any]:
    return {
        "window": found.block,
        "gigabytes": found.num_bytes / _GIGA,
        "teraflop": found.flop / _TERA,
        "launches": found.launches,
        "folds": found.flush_rate,
        "step_ms": found.ms,
        "tokens_per_step": found.tokens,
        "tokens_per_s_each": found.tokens_per_s,
        "tokens_per_s_all": found.tokens_per_s * found.batch,
        "over_first": found.tokens_per_s / base.tokens_per_s,
        "binds": found.bound,
        "terms_us": {term.name: term.us for term in found.terms if term.us},
    }


_HEAD = (
    "arm",
    "GB",
    "TFLOP",
    "launches",
    "folds",
    "ms",
    "tokens",
    "each/s",
    "all/s",
    "gain",
    "best",
    "binds",
)


def render(data: Mapping[str, Any]) -> str:
    """The result as text: a block of lines for each model and number of requests."""
    results, settings = data["results"], data["settings"]
    target = results["target"]
    lines = [
        f"MODELLED for {target['name']}: {target['stated_by']}; {target['replay_us']:g} us a captured kernel "
        f"(assumed)",
        f"context {settings['context']} tokens, window {settings['block']} rows with drafts",
    ]
    blocks: dict[tuple[str, int], list[tuple[str, ...]]] = {}
    for row in results["rows"]:
        blocks.setdefault((row["model"], row["requests"]), []).append(_cells(row))
    every = [_HEAD, *(cells for found in blocks.values() for cells in found)]
    widths = [max(len(cells[column]) for cells in every) for column in range(len(_HEAD))]
    for (model, requests), found in blocks.items():
        lines += ["", f"{model}, requests at once: {requests}"]
        lines += [_line(cells, widths) for cells in (_HEAD, *found)]
    lines += ["", "published, measured by others:"]
    lines += [f"  {entry['what']}: {entry['said']}" for entry in results["published"]]
    lines += ["", *(f"- {note}" for note in data["notes"])]
    return "\n".join(lines)


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    folds = row["folds"]
    return (
        row["arm"],
        f"{row['gigabytes']:.2f}",
        f"{row['teraflop']:.2f}",
        str(row["launches"]),
        "" if folds is None else f"{100 * folds:.0f} %",
        f"{row['step_ms']:.2f}",
        f"{row['tokens_per_step']:.2f}",
        f"{row['tokens_per_s_each']:.0f}",
        f"{row['tokens_per_s_all']:.0f}",
        f"{row['over_first']:.1f} x",
        str(row["best"]),
        row["binds"],
    )


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    first, *middle, last = cells
    padded = [first.ljust(widths[0]), *(c.rjust(w) for c, w in zip(middle, widths[1:-1], strict=True)), last]
    return "  ".join(padded)
