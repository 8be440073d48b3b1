"""Scores by several processes that share one run, against one process and against runs that share nothing.

The weights of a recipe are rounded once; then the stage `sensitivity` is run again and again on copies of
that run folder: by one process, by several under ``torchrun``, and by as many single ones side by side, each
with a folder of its own. The last say how much the machine can do at once: cores that share execution units,
caches or memory give several processes less than their number, whatever these do. Seconds are those of the
stage, without the start of interpreters. The scores of shared runs have to be those of one process, byte for
byte.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import Field

from ocrquant.artifacts import PageScores, Sensitivity, sha256_file
from ocrquant.bench.line_recipe import line_recipe
from ocrquant.bench.pages import CROPS
from ocrquant.bench.report import BenchSettings, Goal, Report
from ocrquant.bench.said import last_said
from ocrquant.bench.scratch import scratch_folder
from ocrquant.bench.timing import median_interval, ratio
from ocrquant.errors import ModelError

__all__ = ["Settings", "run"]

MIN_SHARE = 0.8
"""What the speed of several processes should be of their number, where each has a core."""

ROUNDED, ALONE, SHARED = "rounded", "alone", "shared"


class Settings(BenchSettings):
    """What is scored.

    Attributes:
        model: The model.
        source: Its pages.
        pages: How many to score on, two at once.
        score: `sensitivity.score` of the recipe.
        processes: How many share a run; each computes with one thread.
        scratch: Where to make run folders, which are deleted in the end.
    """

    model: str = "pico"
    source: Path = CROPS
    pages: Annotated[int, Field(ge=4)] = 16
    score: Literal["gradient", "kl", "screened", "both"] = "kl"
    processes: Annotated[int, Field(ge=2)] = 2
    scratch: Path = Path(tempfile.gettempdir())


def run(settings: Settings, repeats: int) -> Report:
    """Runs the stage in all three ways, in an order of its own for each repeat.

    Raises:
        ModelError: A run fails.
        OutputError: There is no folder for scratch.
    """
    count = settings.processes
    with scratch_folder(settings.scratch) as name:
        bench = _Bench(settings, Path(name))
        arms: dict[str, Callable[[], float]] = {
            "one process": lambda: bench.alone(1),
            f"{count} processes share a run": bench.shared,
            f"{count} runs side by side": lambda: bench.alone(count),
        }
        seconds: dict[str, list[float]] = {arm: [] for arm in arms}
        order, shuffle = list(arms), random.Random(0)
        for number in range(1, repeats + 1):
            shuffle.shuffle(order)
            for arm in order:
                seconds[arm].append(arms[arm]())
                said = f"repeat {number} of {repeats}: {arm}: {seconds[arm][-1]:.1f} s"
                print(said, file=sys.stderr, flush=True)
    one, shared, beside = seconds.values()
    faster, at_once = ratio(one, shared), ratio([count * value for value in one], beside)
    report = Report("ranks", settings, repeats)
    report.results = {
        "seconds": {arm: median_interval(values) for arm, values in seconds.items()},
        "times_as_fast": faster,
        "work_of_runs_side_by_side": at_once,
        "share_of_what_the_machine_gives": ratio(beside, [count * value for value in shared]),
        "differing_files": sorted(bench.differing),
    }
    report.goals = [
        Goal(f"scores by {count} processes, times as fast as by one", faster, at_least=MIN_SHARE * count),
        Goal("artefacts that differ from those of one process", float(len(bench.differing)), at_most=0.0),
    ]
    report.notes = [
        "seconds of the stage `sensitivity`, one thread a process, libraries and weights on disk",
        f"'work_of_runs_side_by_side': {count} runs at once over one alone, the most that sharing can gain "
        "on this machine; where it is below the number of processes, these share parts of a core",
    ]
    return report


class _Bench:
    """One run folder with rounded weights, and copies of it that are scored."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self._settings, self._folder = settings, folder
        self._wanted: dict[str, str] = {}
        self.differing: set[str] = set()
        self._finish([self._start("rounding", self._recipe(ROUNDED))])

    def alone(self, count: int) -> float:
        """Seconds of a run by one process, with so many of them at once."""
        names = [f"{ALONE}-{number}" for number in range(count)]
        recipes = [self._copy(name) for name in names]
        self._finish([self._start("sensitivity", recipe) for recipe in recipes])
        self._compare(names[0])
        return sum(self._seconds(name) for name in names) / count

    def shared(self) -> float:
        """Seconds of a run by several processes."""
        recipe = self._copy(SHARED)
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
        launcher.append(str(self._settings.processes))
        self._finish([self._start("sensitivity", recipe, launcher)])
        self._compare(SHARED)
        return self._seconds(SHARED)

    def _recipe(self, name: str) -> Path:
        weights = dict.fromkeys(("smoothing", "scale_search", "gptq"), False)
        recipe = line_recipe(self._settings, {"path": self._settings.model}, weights, self._folder / name)
        path = self._folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
        return path

    def _copy(self, name: str) -> Path:
        shutil.rmtree(self._folder / name, ignore_errors=True)
        shutil.copytree(self._folder / ROUNDED, self._folder / name)
        return self._recipe(name)

    def _start(self, stage: str, recipe: Path, launcher: Sequence[str] = ()) -> subprocess.Popen[str]:
        command = [sys.executable, *launcher, "-m", "ocrquant", "calibrate", str(recipe), "--until", stage]
        return subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def _finish(self, processes: Sequence[subprocess.Popen[str]]) -> None:
        with ExitStack() as stack:
            for process in processes:
                stack.enter_context(process)
                stack.callback(process.kill)
            for process in processes:
                _, said = process.communicate()
                if process.returncode:
                    raise ModelError(
                        self._settings.model,
                        expected="a run up to the scores",
                        given=f"exit code {process.returncode}: {last_said(said)}",
                        fix="see why with `ocrquant sensitivity` on a recipe of this model and these pages",
                    )

    def _compare(self, name: str) -> None:
        files = (Sensitivity.FILE_NAME, PageScores.FILE_NAME)
        found = {file: sha256_file(self._folder / name / file) for file in files}
        self._wanted = self._wanted or found
        self.differing |= {file for file in files if found[file] != self._wanted[file]}

    def _seconds(self, name: str) -> float:
        lines = (self._folder / name / "timings.jsonl").read_text(encoding="utf-8").splitlines()
        seconds: float = json.loads(lines[-1])["seconds"]
        return seconds
