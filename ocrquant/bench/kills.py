"""Kills without warning at random moments of a run: whether the same command ends in the same bytes.

A recipe runs up to the plan, once undisturbed and then again and again in an empty folder: killed (SIGKILL)
after a time drawn evenly over the length of the undisturbed run, and run once more to its end. The plan and
every other artefact have to be those of the undisturbed run, byte for byte. A run that ends before its kill
counts as none; the next draw takes its place.

The runs are forked from a process that has loaded its libraries, so that kills fall into the work. Knows the
pipeline by its one function, and nothing of how a stage resumes.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field

from ocrquant.artifacts import sha256_file
from ocrquant.bench.pages import CROPS
from ocrquant.bench.report import BenchSettings, Goal, Report
from ocrquant.errors import ModelError
from ocrquant.pipeline import STAGE_NAMES, run_recipe
from ocrquant.pipeline.stages import STAGES
from ocrquant.recipe import load_recipe

__all__ = ["Settings", "run"]

LAST = "assign"
ARTEFACTS = {stage.name: stage.artifact.FILE_NAME for stage in STAGES[: STAGE_NAMES.index(LAST) + 1]}
"""What each stage writes last."""

NOT_ARTEFACTS = frozenset({"timings.jsonl", ".lock"})
"""Files of a run folder that tell when, not what."""


class Settings(BenchSettings):
    """What is run and how often it is killed.

    Attributes:
        model: The model.
        source: Its pages.
        pages: Calibration pages.
        kills: How many.
        scratch: Where to make the run folder, which is deleted in the end.
        seed: Of the moments.
    """

    model: str = "pico"
    source: Path = CROPS
    pages: Annotated[int, Field(ge=2)] = 4
    kills: Annotated[int, Field(ge=1)] = 20
    scratch: Path = Path(tempfile.gettempdir())
    seed: int = 0


def run(settings: Settings, repeats: int) -> Report:
    """Runs, kills, runs again and compares; nothing else is repeated."""
    draw, begin = random.Random(settings.seed), time.monotonic()
    wrong: list[dict[str, Any]] = []
    stages: Counter[str] = Counter()
    too_late = 0
    with tempfile.TemporaryDirectory(dir=settings.scratch, prefix="ocrquant-kills-") as name:
        recipe, output = _write_recipe(settings, Path(name)), Path(name) / "run"
        # The first run also fills the caches of the disk; the second is as long as those that are killed.
        _to_the_end(recipe)
        shutil.rmtree(output)
        length = _to_the_end(recipe)
        wanted = _digests(output)
        while stages.total() < settings.kills:
            shutil.rmtree(output)
            delay = draw.uniform(0.0, length)
            if not _killed(recipe, delay):
                too_late += 1
                continue
            stage = _stage_of(output)
            stages[stage] += 1
            _to_the_end(recipe)
            if differing := _differing(wanted, _digests(output)):
                wrong.append({"stage": stage, "seconds": delay, "files": differing})
    report = Report("kills", settings, None)
    report.results = {
        "kills_by_stage": {stage: stages[stage] for stage in ARTEFACTS if stages[stage]},
        "runs_that_ended_before_their_kill": too_late,
        "undisturbed_seconds": length,
        "seconds": time.monotonic() - begin,
        "files_compared": len(wanted),
        "wrong": wrong,
    }
    report.goals = [
        Goal("kills", float(stages.total()), at_least=float(settings.kills)),
        Goal("kills after which a file differed from the undisturbed run", float(len(wrong)), at_most=0.0),
    ]
    report.notes = [
        "SIGKILL after a time drawn evenly over the length of an undisturbed run, libraries loaded",
        "compared byte for byte: every file of the run folder but timings.jsonl",
        "the stage of a kill is the first whose artefact was not there",
    ]
    return report


def _write_recipe(settings: Settings, folder: Path) -> Path:
    recipe = {
        "model": {"path": settings.model},
        "pages": {
            "source": str(settings.source),
            "num_calibration_pages": settings.pages,
            "num_heldout_pages": 1,
            "kinds": ["line"],
        },
        "device": "cpu",
        "statistics": {"batch_size": 2},
        "weights": {"num_held_back_pages": 1},
        "sensitivity": {
            "score": "screened",
            "candidates": ["fp8", "nvfp4"],
            "num_pages": settings.pages,
            "batch_size": 2,
        },
        "assign": {"budget": {"bits_per_weight": 6.5}, "repair": {"max_measurements": 4}},
        "output": str(folder / "run"),
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return path


def _start(recipe: Path) -> multiprocessing.context.ForkProcess:
    process = multiprocessing.get_context("fork").Process(target=_work, args=(recipe,))
    process.start()
    return process


def _work(recipe: Path) -> None:
    """What is killed: silent, so that twenty runs do not fill a screen."""
    with open(os.devnull, "w", encoding="utf-8") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
    run_recipe(load_recipe(recipe), until=LAST)


def _to_the_end(recipe: Path) -> float:
    """Seconds of a run that nobody disturbs."""
    begin = time.monotonic()
    process = _start(recipe)
    process.join()
    if process.exitcode != 0:
        raise ModelError(
            str(recipe),
            expected=f"a run up to {LAST}",
            given=f"exit code {process.exitcode}",
            fix="see why with `ocrquant assign` on such a recipe",
        )
    return time.monotonic() - begin


def _killed(recipe: Path, delay: float) -> bool:
    """Whether the kill came before the end of the run."""
    process = _start(recipe)
    process.join(delay)
    process.kill()
    process.join()
    return process.exitcode != 0


def _stage_of(output: Path) -> str:
    return next((stage for stage, file in ARTEFACTS.items() if not (output / file).exists()), LAST)


def _digests(output: Path) -> dict[str, str]:
    files = [path for path in sorted(output.rglob("*")) if path.is_file() and path.name not in NOT_ARTEFACTS]
    return {str(path.relative_to(output)): sha256_file(path) for path in files}


def _differing(wanted: dict[str, str], found: dict[str, str]) -> Sequence[str]:
    return sorted(name for name in wanted | found if wanted.get(name) != found.get(name))
