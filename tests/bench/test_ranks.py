"""Scores by two processes against one and two side by side, on the tiny model."""

import pytest

from ocrquant.bench import ranks
from ocrquant.errors import ModelError, OutputError
from tests.bench.running import is_estimate, result_of


@pytest.mark.slow
def test_all_ways_are_timed_and_find_the_same(capsys, tiny_model_folder, tmp_path):
    small = (f"model={tiny_model_folder}", "pages=4", "score=gradient", f"scratch={tmp_path}")
    results = result_of(capsys, "ranks", *small)["results"]
    arms = ["one process", "2 processes share a run", "2 runs side by side"]
    assert list(results["seconds"]) == arms
    one, shared, beside = (results["seconds"][arm]["median"] for arm in arms)
    assert results["times_as_fast"]["median"] == pytest.approx(one / shared, rel=1e-3)
    assert results["work_of_runs_side_by_side"]["median"] == pytest.approx(2 * one / beside, rel=1e-3)
    share = results["share_of_what_the_machine_gives"]
    assert is_estimate(share)
    assert share["median"] == pytest.approx(beside / (2 * shared), rel=1e-3)
    assert results["differing_files"] == []
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_differs_is_named(capsys, monkeypatch, tmp_path):
    """By runs that write another score each time."""
    monkeypatch.setattr(ranks._Bench, "_finish", lambda self, processes: None)
    numbers = iter(range(9))

    def start(self, stage, recipe, launcher=()):
        folder = recipe.with_suffix("")
        folder.mkdir(exist_ok=True)
        (folder / "timings.jsonl").write_text('{"stage": "sensitivity", "seconds": 2.0}\n')
        (folder / "page_scores.json").write_text("same")
        (folder / "sensitivity.json").write_text(str(next(numbers)))

    monkeypatch.setattr(ranks._Bench, "_start", start)
    report = ranks.run(ranks.Settings(scratch=tmp_path), 1)
    assert report.results["differing_files"] == ["sensitivity.json"]
    assert "repeat 1 of 1: one process: 2.0 s" in capsys.readouterr().err
    assert [goal["verdict"] for goal in report.as_json()["goals"]] == ["too few repeats: 1 of 12", "missed"]


def test_a_run_that_fails_is_no_result(tmp_path):
    with pytest.raises(ModelError, match=r"expected a run up to the scores, got exit code \d+: .*none"):
        ranks.run(ranks.Settings(model=str(tmp_path / "none"), scratch=tmp_path), 1)
    with pytest.raises(OutputError, match="scratch: expected a folder"):
        ranks.run(ranks.Settings(scratch=tmp_path / "none"), 1)
