"""A random model that is calibrated and scored one decoder block at a time: peak memory against the forecast.

The model is written to the disk, a process of its own runs the recipe up to the scores, and its largest
resident size is compared with what `ocrquant check` says beforehand. Weights are rounded to nearest unless
asked otherwise: GPTQ at full size takes hours on one core and less memory than scoring. Knows the command
line; knows nothing of how a stage works.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field

from ocrquant.bench.large_model import make_folder
from ocrquant.bench.line_recipe import line_recipe
from ocrquant.bench.pages import CROPS
from ocrquant.bench.report import BenchSettings, Goal, Report
from ocrquant.bench.said import last_said
from ocrquant.bench.scratch import scratch_folder
from ocrquant.errors import ModelError

__all__ = ["Settings", "measured_run", "run"]

_TOLERANCE = 0.1

_CHILD = """
import json, sys
from pathlib import Path
from ocrquant.pipeline.check import check_recipe
from ocrquant.pipeline.machine import resident_bytes
from ocrquant.pipeline.run import run_recipe
from ocrquant.recipe import load_recipe
recipe = load_recipe(Path(sys.argv[1]))
effort = check_recipe(recipe).effort
run_recipe(recipe, until="sensitivity")
found = {"foreseen": dict(effort.memory_bytes), "measured": resident_bytes("VmHWM")}
Path(sys.argv[2]).write_text(json.dumps(found))
"""
"""What the measured process runs; it has no other work, so that its peak is that of the stages."""


class Settings(BenchSettings):
    """What is run.

    Attributes:
        shape: Sizes of the model, ``qwen3.5-4b`` (9 GB in bf16) or ``small``.
        model: A folder that an earlier run made, to be kept; made and deleted when left out.
        scratch: Where to make folders: three times the size of the model is written.
        source: Pages.
        pages: How many are calibrated and scored on.
        score: `sensitivity.score` of the recipe.
        gptq: Whether weights are rounded by all steps; else to nearest.
        residency: `model.residency` of the recipe.
    """

    shape: Literal["qwen3.5-4b", "small"] = "qwen3.5-4b"
    model: Path | None = None
    scratch: Path = Path(tempfile.gettempdir())
    source: Path = CROPS
    pages: Annotated[int, Field(ge=2)] = 2
    score: Literal["gradient", "kl", "screened", "both"] = "gradient"
    gptq: bool = False
    residency: Literal["whole", "block"] = "block"


def run(settings: Settings, repeats: int) -> Report:
    """Makes the model, runs the recipe and compares; nothing is repeated."""
    with scratch_folder(settings.scratch) as name:
        folder = Path(name)
        model = settings.model or folder / "model"
        if not model.exists():
            make_folder(model, settings.shape)
        weights = sum(file.stat().st_size for file in model.glob("*.safetensors"))
        found, seconds = measured_run(recipe_of(settings, model, folder / "run"), folder)
        timings = [json.loads(line) for line in (folder / "run" / "timings.jsonl").read_text().splitlines()]
    foreseen, measured = max(found["foreseen"].values()), found["measured"]
    report = Report("memory", settings, None)
    report.results = {
        "weight_bytes": weights,
        "foreseen_bytes": found["foreseen"],
        "measured_peak_bytes": measured,
        "measured_over_foreseen": measured / foreseen,
        "seconds": seconds,
        "seconds_by_stage": {entry["stage"]: entry["seconds"] for entry in timings},
    }
    report.goals = [
        Goal("distance of the peak from the forecast", abs(measured / foreseen - 1), at_most=_TOLERANCE)
    ]
    if settings.shape == "qwen3.5-4b" and settings.residency == "block":
        report.goals.append(Goal("peak, GiB", measured / (1 << 30), at_most=6.0))
    report.notes = [
        "peak: VmHWM of the process, interpreter and libraries included, of check and three stages"
    ]
    return report


def recipe_of(settings: Settings, model: Path, output: Path) -> dict[str, Any]:
    """The recipe of a run."""
    weights = dict.fromkeys(("smoothing", "scale_search", "gptq"), settings.gptq)
    return line_recipe(settings, {"path": str(model), "residency": settings.residency}, weights, output)


def measured_run(recipe: dict[str, Any], scratch: Path) -> tuple[dict[str, Any], float]:
    """What was foreseen and measured of a recipe in a process of its own, and its seconds.

    Raises:
        ModelError: The process failed.
    """
    path, result = scratch / "recipe.yaml", scratch / "found.json"
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    begin = time.perf_counter()
    command = [sys.executable, "-c", _CHILD, str(path), str(result)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode != 0:
        shutil.rmtree(recipe["output"], ignore_errors=True)
        raise ModelError(
            "the measured run",
            expected="a run up to the scores",
            given=last_said(process.stderr),
            fix="see its recipe",
        )
    return json.loads(result.read_text()), time.perf_counter() - begin
