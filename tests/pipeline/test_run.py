"""The whole way on a tiny random model: artefacts, skipping, another budget, missing truth, kills."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ocrquant.artifacts import Assignment, PageSet, Report, Sensitivity, sha256_file
from ocrquant.pipeline import STAGE_NAMES, run_recipe
from ocrquant.recipe import load_recipe

WriteRecipe = Callable[..., Path]
NOT_ARTEFACTS = {"timings.jsonl", ".lock"}


def digests(folder: Path) -> dict[str, str]:
    files = [p for p in sorted(folder.rglob("*")) if p.is_file() and ".partial" not in p.parts]
    return {str(p.relative_to(folder)): sha256_file(p) for p in files if p.name not in NOT_ARTEFACTS}


def stage_lines(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Last message of each stage."""
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().err.splitlines()]
    return {words[0]: words[1] for words in lines if len(words) == 2 and words[0] in STAGE_NAMES}


def test_the_whole_way_then_nothing_then_another_budget(
    write_recipe: WriteRecipe, capsys: pytest.CaptureFixture[str]
):
    path = write_recipe()
    folder = run_recipe(load_recipe(path))
    report = Report.load(folder)
    assert [str(arm.name) for arm in report.arms] == ["bf16", "fp8", "nvfp4", "plan"]
    plan = Assignment.load(folder)
    assert plan.bits_per_weight <= 6.5
    assert len(set(plan.groups.values())) > 1
    for name in ("report.md", "report.html", "checkpoint/config.json", "checkpoint/model.safetensors"):
        assert (folder / name).is_file(), name
    before = digests(folder)
    capsys.readouterr()

    run_recipe(load_recipe(path))
    lines = stage_lines(capsys)
    assert {name for name, text in lines.items() if text == "up to date"} == set(STAGE_NAMES) - {"evaluate"}
    assert digests(folder) == before

    run_recipe(load_recipe(path, ["assign.budget.bits_per_weight=9"]), adopt=True, until="assign")
    lines = stage_lines(capsys)
    assert lines["sensitivity"] == "up to date"
    assert lines["assign"] != "up to date"
    assert 6.5 < Assignment.load(folder).bits_per_weight <= 9


def test_a_repair_is_measured_on_whole_plans_and_comes_to_the_same_again(write_recipe: WriteRecipe):
    repaired = {"budget": {"bits_per_weight": 6.5}, "repair": {"max_measurements": 3}}
    path = write_recipe(assign=repaired)
    folder = run_recipe(load_recipe(path), until="assign")
    plan = Assignment.load(folder)
    assert plan.repair is not None
    assert plan.repair.num_measurements == 3
    assert plan.repair.after.measured <= plan.repair.before.measured
    assert plan.bits_per_weight <= 6.5
    text = (folder / Assignment.FILE_NAME).read_text()
    (folder / Assignment.FILE_NAME).unlink()
    run_recipe(load_recipe(path), until="assign")
    assert (folder / Assignment.FILE_NAME).read_text() == text


def test_an_edited_plan_is_what_is_exported(write_recipe: WriteRecipe):
    path = write_recipe()
    folder = run_recipe(load_recipe(path), until="assign")
    file = folder / "assignment.yaml"
    group = next(name for name, p in Assignment.load(folder).groups.items() if name.endswith("mlp.down"))
    text = file.read_text()
    line = next(row for row in text.splitlines() if row.strip().startswith(group))
    other = "bf16" if "bf16" not in line else "fp8"
    file.write_text(text.replace(line, f"  {group}: {other}"))
    run_recipe(load_recipe(path), until="export")
    assert str(Assignment.load(folder).groups[group]) == other
    config = json.loads((folder / "checkpoint" / "config.json").read_text())
    ignored = any(group.split(".")[1] in name for name in config["quantization_config"]["ignore"])
    assert ignored or other == "fp8"


def test_the_model_transcribes_pages_without_truth(write_recipe: WriteRecipe, tmp_path: Path):
    source = tmp_path / "pages"
    shipped = Path(__file__).parents[2] / "calibration_data"
    images = sorted(shipped.rglob("*.png"))[:6]
    source.mkdir()
    for i, image in enumerate(images):
        shutil.copy(image, source / f"page{i}.png")
    pages = {
        "source": str(source),
        "num_calibration_pages": 4,
        "num_heldout_pages": 2,
        "heldout_fraction": 0.4,
    }
    folder = run_recipe(load_recipe(write_recipe(pages=pages)))
    records = PageSet.load(folder).pages
    assert {record.truth_source for record in records} == {"model"}
    assert all(record.text is not None for record in records)
    assert "own transcription" in (folder / "report.md").read_text()


def test_until_refuses_an_unknown_stage(write_recipe: WriteRecipe):
    from ocrquant.errors import RecipeError

    with pytest.raises(RecipeError, match="sensitivity"):
        run_recipe(load_recipe(write_recipe()), until="sensitivty")


@pytest.mark.slow
def test_kills_at_any_moment_end_in_the_same_bytes(write_recipe: WriteRecipe):
    path = write_recipe()
    run = run_recipe(load_recipe(path))
    wanted = digests(run)
    shutil.rmtree(run)
    command = [sys.executable, "-m", "ocrquant", "calibrate", str(path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    chance = random.Random(0)
    for _ in range(4):
        process = subprocess.Popen(
            command, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        # Kills fall behind the imports, into the work: wait until the run folder shows life.
        begin = time.monotonic()
        while not (run / "recipe.sha256").exists() and process.poll() is None:
            time.sleep(0.05)
            assert time.monotonic() - begin < 300
        time.sleep(chance.uniform(0.0, 6.0))
        process.send_signal(signal.SIGKILL)
        process.wait()
        if (run / "report.html").exists():
            break
    assert subprocess.run(command, env=environment, capture_output=True, check=False).returncode == 0
    assert digests(run) == wanted
    assert Sensitivity.load(run).rows
