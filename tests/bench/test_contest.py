"""The contest with ModelOpt, on a tiny model and a few crops: what is counted, kept and gone on with."""

import json

import pytest

from ocrquant.bench import contest_seed
from ocrquant.bench.contest_ratio import ratio_interval
from tests.bench.running import result_of

pytest.importorskip("modelopt")

OWN = "ocrquant, own weights"
OF_JUDGED = "of the judged pages"
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
    ours = ("ocrquant", OWN, OF_JUDGED)
    assert set(row["kl"]) == {*SIDES, *ours}
    assert all(value > 0 for value in row["kl"].values())
    assert all(row["bits"][side] <= 6.0 for side in ours)
    assert row["pages"] == 2
    assert row["sum"][OF_JUDGED] == min(row["sum"][side] for side in (*SIDES, OF_JUDGED))
    assert row["least_sum_ratio"] == pytest.approx(
        row["sum"][OF_JUDGED] / min(row["sum"][name] for name in SIDES[1:]), rel=1e-4
    )
    assert data["results"]["least_sum_ratio"] == {"6 bits": [row["least_sum_ratio"]]}
    best = min(row["kl"][name] for name in SIDES[1:])
    assert row["ratio"] == {side: pytest.approx(row["kl"][side] / best, rel=1e-4) for side in ours}
    for side in ours:
        ratio, value = dict(data["results"]["ratio"]["6 bits"][side]), row["ratio"][side]
        low, high = ratio.pop("interval")
        assert low <= value <= high
        assert ratio == {"mean": value, "largest": value, "by_seed": [value]}
    assert [goal["at_most"] for goal in data["goals"]] == [0.9] * 4
    assert not any(OF_JUDGED in goal["what"] for goal in data["goals"])
    assert all(data["results"]["seconds"][name] > 0 for name in SIDES)
    assert data["results"]["seed 3"]["swaps"]["6 bits"]["measured"] == 2

    def refuse(*_):
        raise AssertionError("done already")

    for name in ("_modelopt", "_ours", "_judged", "_of_judged"):
        monkeypatch.setattr(contest_seed, name, refuse)
    again = result_of(capsys, "contest", *small, repeats=None)
    assert again["results"] == data["results"]
    assert json.loads((tmp_path / "contest/seed-3/judged.json").read_text())["result"].keys() == set(SIDES)
    with pytest.raises(AssertionError, match="done already"):
        result_of(capsys, "contest", *small[:3], "heldout_pages=3", *small[4:], repeats=None)


def test_interval_of_a_ratio_draws_the_same_pages_for_all():
    hard = [[kl, 5] for kl in (1.0, 2.0, 30.0, 4.0)]
    half = [[kl / 2, count] for kl, count in hard]
    sides = {"ours": {"b": half}, "first": {"b": hard}, "second": {"b": [[2 * kl, n] for kl, n in hard]}}
    assert ratio_interval([sides, sides], "b", "ours", ("first", "second")) == (0.5, 0.5)
    # Two sides win a page each: as good as the better one where a page is drawn twice, else 2 of 11.
    first, second = [[1, 1], [10, 1]], [[10, 1], [1, 1]]
    split = {"ours": {"b": [[1, 1], [1, 1]]}, "first": {"b": first}, "second": {"b": second}}
    assert ratio_interval([split], "b", "ours", ("first", "second")) == pytest.approx((2 / 11, 1.0))
