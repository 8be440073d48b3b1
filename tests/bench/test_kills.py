"""Random kills on the tiny model, and that a run which does not resume well is found out."""

import pytest

from ocrquant.bench import kills
from ocrquant.errors import ModelError, OutputError
from tests.bench.running import result_of


@pytest.mark.slow
def test_killed_runs_end_in_the_same_bytes(capsys, tiny_model_folder, tmp_path):
    small = (f"model={tiny_model_folder}", "pages=2", "kills=2", f"scratch={tmp_path}")
    data = result_of(capsys, "kills", *small, repeats=None)
    assert sum(data["results"]["kills_by_stage"].values()) == 2
    assert set(data["results"]["kills_by_stage"]) <= set(kills.ARTEFACTS)
    assert data["results"]["files_compared"] >= 8
    assert data["results"]["wrong"] == []
    assert {goal["verdict"] for goal in data["goals"]} == {"reached"}
    assert list(tmp_path.iterdir()) == []


FORGETFUL = """
import time
def run_recipe(recipe, *, until):
    folder = Path(recipe.output)
    folder.mkdir(exist_ok=True)
    is_again = (folder / "begun").exists()
    (folder / "begun").touch()
    time.sleep(0.3)
    (folder / "assignment.yaml").write_text("second" if is_again else "first")
"""


def test_another_plan_after_a_kill_is_named(capsys, monkeypatch, tmp_path):
    """By a run that writes another one when it is begun twice."""
    line = "from ocrquant.pipeline.run import run_recipe\n"
    assert line in kills._CHILD
    monkeypatch.setattr(kills, "_CHILD", kills._CHILD.replace(line, FORGETFUL))
    data = result_of(capsys, "kills", "kills=2", f"scratch={tmp_path}", repeats=None)
    assert [entry["files"] for entry in data["results"]["wrong"]] == [["assignment.yaml"]] * 2
    assert [goal["verdict"] for goal in data["goals"]] == ["reached", "missed"]


def test_a_run_that_fails_is_no_result(tmp_path):
    with pytest.raises(ModelError, match=r"expected a run up to the plan, got exit code 1: \S+: .*/none"):
        kills.run(kills.Settings(model=str(tmp_path / "none"), kills=1, scratch=tmp_path), 1)


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(OutputError, match="scratch: expected a folder"):
        kills.run(kills.Settings(kills=1, scratch=tmp_path / "none"), 1)
