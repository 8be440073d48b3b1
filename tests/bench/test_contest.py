"""The contest with ModelOpt, on a tiny model and a few crops: what is counted, kept and gone on with."""

import json

import pytest

from ocrquant.bench import contest_seed
from tests.bench.running import result_of

pytest.importorskip("modelopt")

SIDES = ("ocrquant", "modelopt gradient", "modelopt kl_div")


def test_plans_are_judged_alike_and_finished_parts_are_kept(capsys, monkeypatch, tmp_path, tiny_model_folder):
    small = (
        f"model={tiny_model_folder}",
        f"folder={tmp_path / 'contest'}",
        "pages=4",
        "heldout_pages=2",
        "bits=[6.0]",
        "seeds=[3]",
        "max_measurements=2",
    )
    data = result_of(capsys, "contest", *small, repeats=None)
    row = data["results"]["seed 3"]["plans"]["6 bits"]
    assert set(row["kl"]) == {*SIDES, "ocrquant, own weights"}
    assert all(value > 0 for value in row["kl"].values())
    assert row["bits"]["ocrquant"] <= 6.0
    assert row["pages"] == 2
    best = min(row["kl"][name] for name in SIDES[1:])
    assert row["ratio"] == pytest.approx(row["kl"]["ocrquant"] / best, rel=1e-4)
    assert data["results"]["ratio"]["6 bits"] == {
        "mean": row["ratio"],
        "largest": row["ratio"],
        "by_seed": [row["ratio"]],
    }
    assert [goal["at_most"] for goal in data["goals"]] == [0.9, 0.9]
    assert all(data["results"]["seconds"][name] > 0 for name in SIDES)
    assert data["results"]["seed 3"]["swaps"]["6 bits"]["measured"] == 2

    def refuse(*_):
        raise AssertionError("done already")

    for name in ("_modelopt", "_ours", "_judged", "_judged_own"):
        monkeypatch.setattr(contest_seed, name, refuse)
    again = result_of(capsys, "contest", *small, repeats=None)
    assert again["results"] == data["results"]
    assert json.loads((tmp_path / "contest/seed-3/judged.json").read_text())["result"].keys() == set(SIDES)
    with pytest.raises(AssertionError, match="done already"):
        result_of(capsys, "contest", *small[:3], "heldout_pages=3", *small[4:], repeats=None)
