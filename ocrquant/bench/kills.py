"""Kills without warning at random moments of a run: whether the same command ends in the same bytes.

A recipe runs up to the plan, once undisturbed and then again and again in an empty folder: killed (SIGKILL)
after a time drawn evenly over the length of the undisturbed run, and run once more to its end. The plan and
every other artefact have to be those of the undisturbed run, byte for byte. A run that ends before its kill
counts as none; the next draw takes its place.

The runs are forked from a process that has loaded its libraries, so that kills fall into the work. Knows run
folders, and nothing of how a stage resumes.
"""

from __future__ import annotations

import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field

from ocrquant.artifacts import Assignment, PageSet, Rounding, Sensitivity, Statistics, sha256_file
from ocrquant.bench.line_recipe import line_recipe
from ocrquant.bench.pages import CROPS
from ocrquant.bench.report import BenchSettings, Goal, Report
from ocrquant.bench.said import last_said
from ocrquant.bench.scratch import scratch_folder
from ocrquant.errors import ModelError

__all__ = ["Settings", "run"]

ARTEFACTS = {
    artefact.STAGE: artefact.FILE_NAME
    for artefact in (PageSet, Statistics, Rounding, Sensitivity, Assignment)
}
"""What each stage writes last, up to the plan."""

NOT_ARTEFACTS = frozenset({"timings.jsonl", ".lock"})
"""Files of a run folder that tell when, not what."""

_CHILD = """
import os, sys
from traceback import print_exc
from pathlib import Path
import torch, transformers
from ocrquant.pipeline.run import run_recipe
from ocrquant.recipe import load_recipe
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            run_recipe(load_recipe(Path(line.strip())), until="assign")
            code = 0
        except BaseException:
            print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Runs a recipe for each line that it reads, and prints the number of the process and then how it ended."""


class Settings(BenchSettings):
    """What is run and how often it is killed.

    Attributes:
        model: The model.
        source: Its pages.
        pages: Calibration pages.
        kills: How many.
        all_steps: Whether weights are rounded by all steps; else by the search for scales alone, which takes
            less of the run.
        score: `sensitivity.score` of the recipe.
        scratch: Where to make the run folder, which is deleted in the end.
        seed: Of the moments.
    """

    model: str = "pico"
    source: Path = CROPS
    pages: Annotated[int, Field(ge=2)] = 4
    kills: Annotated[int, Field(ge=1)] = 20
    all_steps: bool = True
    score: Literal["gradient", "kl", "screened", "both"] = "screened"
    scratch: Path = Path(tempfile.gettempdir())
    seed: int = 0


def run(settings: Settings, repeats: int) -> Report:
    """Runs, kills, runs again and compares; nothing else is repeated.

    Raises:
        ModelError: The recipe fails where nobody disturbs it.
        OutputError: There is no folder for scratch.
    """
    draw, begin = random.Random(settings.seed), time.monotonic()
    wrong: list[dict[str, Any]] = []
    stages: Counter[str] = Counter()
    too_late = 0
    with (
        scratch_folder(settings.scratch) as name,
        _Runner(_write_recipe(settings, Path(name))) as runner,
    ):
        output = Path(name) / "run"
        # The first run also fills the caches of the disk; the second is as long as those that are killed.
        runner.to_the_end()
        shutil.rmtree(output)
        length = runner.to_the_end()
        wanted = _digests(output)
        while stages.total() < settings.kills:
            shutil.rmtree(output, ignore_errors=True)
            delay = draw.uniform(0.0, length)
            if not runner.killed(delay):
                too_late += 1
                continue
            stage = _stage_of(output)
            stages[stage] += 1
            runner.to_the_end()
            differing = _differing(wanted, _digests(output))
            if differing:
                wrong.append({"stage": stage, "seconds": delay, "files": differing})
            _say(stages.total(), delay, length, stage, differing)
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
    weights = {"smoothing": settings.all_steps, "gptq": settings.all_steps}
    repair = {"max_measurements": 4}
    recipe = line_recipe(settings, {"path": settings.model}, weights, folder / "run", repair=repair)
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return path


class _Runner:
    """Runs a recipe in processes that have loaded everything."""

    def __init__(self, recipe: Path) -> None:
        self._recipe = recipe

    def __enter__(self) -> Self:
        self._said = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
        self._parent = subprocess.Popen(
            [sys.executable, "-c", _CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            bufsize=1,
        )
        return self

    def __exit__(self, *error: object) -> None:
        # It ends with its input.
        self._parent.communicate()
        self._said.close()

    def to_the_end(self) -> float:
        """Seconds of a run that nobody disturbs.

        Raises:
            ModelError: It failed.
        """
        begin = time.monotonic()
        self._begin()
        if code := int(self._line()):
            raise ModelError(
                str(self._recipe),
                expected="a run up to the plan",
                given=f"exit code {code}: {self._last_said()}",
                fix="see why with `ocrquant assign` on a recipe of this model and these pages",
            )
        return time.monotonic() - begin

    def _last_said(self) -> str:
        self._said.seek(0)
        return last_said(self._said.read())

    def killed(self, delay: float) -> bool:
        """Kills a run after so many seconds; whether the kill came before its end."""
        child = self._begin()
        assert self._parent.stdout is not None
        ended, _, _ = select.select([self._parent.stdout], [], [], delay)
        if not ended:
            os.kill(child, signal.SIGKILL)
        return int(self._line()) == -signal.SIGKILL

    def _begin(self) -> int:
        assert self._parent.stdin is not None
        self._parent.stdin.write(f"{self._recipe}\n")
        return int(self._line())

    def _line(self) -> str:
        assert self._parent.stdout is not None
        return self._parent.stdout.readline()


def _say(number: int, delay: float, length: float, stage: str, differing: Sequence[str]) -> None:
    end = ", ".join(differing) + " differ" if differing else "the same bytes"
    print(f"kill {number} after {delay:.1f} of {length:.1f} s in {stage}: {end}", file=sys.stderr, flush=True)


def _stage_of(output: Path) -> str:
    return next(
        (stage for stage, file in ARTEFACTS.items() if not (output / file).exists()), Assignment.STAGE
    )


def _digests(output: Path) -> dict[str, str]:
    files = [path for path in sorted(output.rglob("*")) if path.is_file() and path.name not in NOT_ARTEFACTS]
    return {str(path.relative_to(output)): sha256_file(path) for path in files}


def _differing(wanted: dict[str, str], found: dict[str, str]) -> Sequence[str]:
    return sorted(name for name in wanted | found if wanted.get(name) != found.get(name))
