"""Our plans against those of ModelOpt's AutoQuantize, both judged by one evaluator on pages that neither saw.

For every seed some calibration pages are drawn. From them ModelOpt scores by gradients and by KL divergence
and plans with its own solvers, and so do our stages, swaps on the plan as a whole included. Formats, groups
and budgets are the same, and every bit is counted alike: over the searched groups. Then each plan is put into
the model with the same rounded weights, nearest ones, which are also what ModelOpt's calibration by maxima
gives, and its KL divergence from the unquantized model is measured on held-out pages. A second column has
what our recipes make of the same pages as a whole: weights that they round, scored and planned for. A third
has the plan of least sum by scores on the held-out pages themselves: what is missing there is not for want of
pages, but what single scores cannot know. Its sum over that of ModelOpt's better plan, by the same scores,
tells how much there is to win at all by the choice of formats.

Everything that is finished is kept in a folder; the same command goes on from there.
"""

from __future__ import annotations

import sys
from functools import partial
from math import fsum
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

from pydantic import Field

from ocrquant.bench.contest_ratio import ratio_interval
from ocrquant.bench.contest_seed import OF_JUDGED, OURS, OWN, THEIRS, JudgedPages, run_seed
from ocrquant.bench.contest_setup import SeedContest
from ocrquant.bench.pages import CROPS
from ocrquant.bench.report import BenchSettings, Goal, Report

__all__ = ["Settings", "run"]

MAX_RATIO = 0.9


class Settings(BenchSettings):
    """What the contest is about.

    Attributes:
        model: The model.
        source: Its pages.
        folder: Where finished parts are kept.
        pages: Calibration pages of a seed: all sides calibrate and score on all of them.
        heldout_pages: Pages of a seed that plans are judged on.
        batch_size: Pages at once.
        bits: Budgets, bits a weight over the searched groups.
        seeds: Each chooses pages.
        max_measurements: Plans that our swaps may measure at each budget.
        own_weights: Whether we also plan with the weights that our recipes round, and are judged with them.
        score_judged: Whether to tell what a plan from the held-out pages' own scores loses there.
    """

    model: str = "pico"
    source: Path = CROPS
    folder: Path = Path("runs/contest")
    pages: Annotated[int, Field(ge=4)] = 64
    heldout_pages: Annotated[int, Field(ge=2)] = 200
    batch_size: Annotated[int, Field(ge=1)] = 8
    bits: tuple[float, ...] = (5.0, 5.5, 6.0, 7.0)
    seeds: tuple[int, ...] = (0, 1, 2)
    max_measurements: Annotated[int, Field(ge=0)] = 6
    own_weights: bool = True
    score_judged: bool = True


def run(settings: Settings, repeats: int) -> Report:
    """Runs all seeds; every one is printed to the error stream as soon as it is judged."""
    report = Report("contest", settings, None)
    judged: list[JudgedPages] = []
    for seed in settings.seeds:
        contest = SeedContest(
            model=settings.model,
            source=settings.source,
            folder=settings.folder / f"seed-{seed}",
            num_pages=settings.pages,
            num_heldout_pages=settings.heldout_pages,
            batch_size=settings.batch_size,
            bits=settings.bits,
            seed=seed,
            max_measurements=settings.max_measurements,
            own_weights=settings.own_weights,
            score_judged=settings.score_judged,
        )
        found, pages = run_seed(contest, partial(_say, f"seed {seed}:"))
        report.results[f"seed {seed}"] = found
        judged.append(pages)
        for budget in settings.bits:
            _say(f"seed {seed}, {budget:g} bits: {_line(found['plans'][f'{budget:g} bits'])}")
    sides = [side for side in (OURS, OWN, OF_JUDGED) if side in judged[0]]
    ratios = {
        f"{budget:g} bits": {side: _ratio(report.results, settings, judged, budget, side) for side in sides}
        for budget in settings.bits
    }
    report.results["ratio"] = ratios
    if settings.score_judged:
        report.results["least_sum_ratio"] = {
            name: [
                report.results[f"seed {seed}"]["plans"][name]["least_sum_ratio"] for seed in settings.seeds
            ]
            for name in ratios
        }
    report.results["seconds"] = _seconds(report.results, settings)
    report.goals = [
        Goal(
            f"KL of {side} over the better of ModelOpt's two, {budget}, {name} of seeds",
            value,
            at_most=MAX_RATIO,
        )
        for side in sides
        if side != OF_JUDGED
        for budget, by_side in ratios.items()
        for name, value in (("mean", by_side[side]["mean"]), ("largest", by_side[side]["largest"]))
    ]
    report.notes = [
        "KL in nats a token from the unquantized model, in float32, answer tokens of held-out pages",
        "the same rounded weights under all plans: nearest, as ModelOpt's calibration by maxima gives; only "
        f"'{OWN}' is scored, planned and judged with the weights that our recipes round on the same pages",
        f"'{OF_JUDGED}': the plan of least sum by our screened scores on the pages that judge, which no side "
        "may see; no bound, since a sum of single scores does not know what groups do together",
        "ModelOpt's CUDA-only dynamic block quantizer is replaced by a few lines of torch on a CPU, its loss "
        "is scaled, and it judges answer tokens alone, as we do",
        "bits a weight over the searched groups, for all plans; ModelOpt's other layers do not count",
        "the better of ModelOpt's plans is the one with the smaller KL, whether or not it keeps its budget",
        "95 % intervals of the mean ratio: held-out pages of each seed drawn again 2000 times, the better of "
        "ModelOpt's plans chosen in each draw; they hold for these plans, not for other calibration pages",
        "seconds are process time: ModelOpt's with its calibration, ours with statistics and rounding",
    ]
    return report


def _ratio(
    results: dict[str, Any], settings: Settings, judged: list[JudgedPages], budget: float, side: str
) -> dict[str, Any]:
    """A side's KL over that of the better of ModelOpt's plans: mean over seeds, its interval, and each."""
    name = f"{budget:g} bits"
    rows = [results[f"seed {seed}"]["plans"][name] for seed in settings.seeds]
    values = [row["ratio"][side] for row in rows]
    return {
        "mean": fmean(values),
        "interval": ratio_interval(judged, name, side, THEIRS),
        "largest": max(values),
        "by_seed": values,
    }


def _say(*words: str) -> None:
    print(*words, file=sys.stderr, flush=True)


def _line(row: dict[str, Any]) -> str:
    sides = ", ".join(f"{name} {row['kl'][name]:.6f} at {row['bits'][name]:.3f}" for name in (OURS, *THEIRS))
    ratios = ", ".join(f"{name} {value:.3f}" for name, value in row["ratio"].items())
    return f"over the better one: {ratios} ({sides})"


def _seconds(results: dict[str, Any], settings: Settings) -> dict[str, float]:
    """Means over seeds."""
    by_seed = [results[f"seed {seed}"]["cpu_seconds"] for seed in settings.seeds]
    return {name: fsum(seconds[name] for seconds in by_seed) / len(by_seed) for name in by_seed[0]}
