"""The benchmark of scores, on a tiny model and a few crops."""

from pathlib import Path

import yaml

from ocrquant.pipeline import run_recipe
from ocrquant.recipe import load_recipe
from tests.bench.running import is_estimate, result_of

ROOT = Path(__file__).parents[2]


def test_every_way_scores_the_same_choices(capsys, tmp_path, tiny_model_folder):
    recipe = tmp_path / "recipe.yaml"
    sections = {
        "model": {"path": str(tiny_model_folder)},
        "pages": {
            "source": str(ROOT / "calibration_data"),
            "num_calibration_pages": 5,
            "num_heldout_pages": 1,
            "kinds": ["line"],
        },
        "sensitivity": {"candidates": ["nvfp4", "fp8"]},
        "weights": {"smoothing": False, "scale_search": False, "gptq": False},
        "assign": {"budget": {"bits_per_weight": 6.0}},
        "output": str(tmp_path / "run"),
    }
    recipe.write_text(yaml.safe_dump(sections), encoding="utf-8")
    run_recipe(load_recipe(recipe), until="rounding")
    small = (f"run={tmp_path / 'run'}", f"model={tiny_model_folder}", "pages=3", "bits=[6.0]")
    data = result_of(capsys, "sensitivity", *small)
    found = data["results"]
    plain, measured, screened = "a whole pass for each choice", "measured", "screened"
    for way in (plain, measured, screened):
        assert is_estimate(found[way]["cpu_seconds"])
        assert is_estimate(found[way]["share_of_plain"])
        assert found[way]["choices"] == 34
    assert found[plain]["choices_measured"] == found[measured]["choices_measured"] == 34
    assert 0 < found[screened]["choices_measured"] < 34
    assert found["plans"]["6 bits"][measured] == found["plans"]["6 bits"][plain] > 0
    assert len(data["goals"]) == 2
