"""The sample workflow is one that GitHub Actions reads, and its commands would work."""

import os
import re
import shlex
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from ocrquant.cli import app

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / "recipes/ci").glob("*.yml"))
RUNNER = CliRunner()

STEP_KEYS = {"name", "id", "if", "uses", "with", "run", "env", "timeout-minutes", "continue-on-error"}


def read(path):
    """YAML 1.1 reads the key `on` as true."""
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {"on" if key is True else key: value for key, value in data.items()}


def steps(workflow):
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def faults(workflow):
    """What GitHub would refuse."""
    found = [f"unknown key {key}" for key in workflow.keys() - {"name", "on", "env", "jobs", "permissions"}]
    found += [f"no {key}" for key in ("on", "jobs") if key not in workflow]
    for name, job in workflow.get("jobs", {}).items():
        found += [f"{name}: no {key}" for key in ("runs-on", "steps") if key not in job]
        for step in job.get("steps", []):
            found += [f"{name}: unknown key {key}" for key in step.keys() - STEP_KEYS]
            if ("run" in step) == ("uses" in step):
                found.append(f"{name}: a step needs one of run and uses")
            if "uses" in step and not re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step["uses"]):
                found.append(f"{name}: {step['uses']} has no version")
    return found


def commands(workflow, env):
    """Arguments of every call of the program, variables filled in."""
    found = []
    for step in steps(workflow):
        for line in step.get("run", "").splitlines():
            words = shlex.split(re.sub(r"\$(\w+)", lambda match: env[match[1]], line))
            if words and words[0] == "ocrquant":
                found.append(words[1:])
    return found


def dry(arguments):
    """The check of the same recipe with the same values, which does no work."""
    assert arguments[0] in ("check", "calibrate")
    return ["check", *[word for word in arguments[1:] if word != "--adopt"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflow_is_one(path):
    assert faults(read(path)) == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_commands_would_work(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    workflow = read(path)
    found = commands(workflow, workflow["env"])
    assert [arguments[0] for arguments in found] == ["check", "calibrate"]
    assert dry(found[0]) == found[0]
    assert sorted(dry(found[1])) == sorted(found[0])
    result = RUNNER.invoke(app, dry(found[1]))
    assert result.exit_code == 0, result.output


def test_what_is_kept_lies_in_the_run_folder():
    for path in WORKFLOWS:
        workflow = read(path)
        kept = [step["with"]["path"] for step in steps(workflow) if "path" in step.get("with", {})]
        assert len(kept) == 2
        for line in "\n".join(kept).split("\n"):
            assert not line or line.startswith("${{ env.RUN }}")
        assert (ROOT / workflow["env"]["RECIPE"]).is_file()
        assert not os.path.isabs(workflow["env"]["RUN"])


def test_planted_faults_are_found():
    good = read(WORKFLOWS[0])
    assert faults({**good, "step": []}) == ["unknown key step"]
    assert faults({key: value for key, value in good.items() if key != "on"}) == ["no on"]
    job = good["jobs"]["gate"]
    for step in ({"run": "a", "uses": "b/c@v1"}, {"name": "a"}, {"uses": "b/c"}, {"run": "a", "shel": "b"}):
        assert len(faults({**good, "jobs": {"gate": {**job, "steps": [step]}}})) == 1
    with pytest.raises(KeyError):
        commands(good, {})
