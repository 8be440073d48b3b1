from pathlib import Path

import pytest
from typer.testing import CliRunner

from ocrquant.cli import app
from ocrquant.recipe import Difference, build_recipe, load_recipe, recipe_differences
from ocrquant.recipe.schema import Recipe

RUNNER = CliRunner()
GENERAL = Path(__file__).parents[2] / "recipes/general"


def recipe(**sections: object) -> Recipe:
    base = {
        "model": {"path": "a"},
        "pages": {"source": "b", "num_calibration_pages": 32, "num_heldout_pages": 4},
        "sensitivity": {"candidates": ["fp8", "nvfp4"]},
        "assign": {"budget": {"bits_per_weight": 6.5}},
        "output": "c",
    }
    return build_recipe({**base, **sections}, "a test")


def test_equal_recipes_differ_in_nothing():
    assert recipe_differences(recipe(), recipe()) == []


def test_a_default_that_is_spelled_out_is_no_difference():
    spelled = recipe(sensitivity={"candidates": ["fp8", "nvfp4"], "score": recipe().sensitivity.score})
    assert recipe_differences(recipe(), spelled) == []


def test_values_are_compared_by_key_in_the_order_of_the_schema():
    other = recipe(
        output="d",
        model={"path": "a", "prompts": {"line": "Read."}},
        assign={"budget": {"weight_bytes": 100}},
        sensitivity={"candidates": ["fp8"]},
    )
    assert recipe_differences(recipe(), other) == [
        Difference("model.prompts.line", None, "Read."),
        Difference("sensitivity.candidates", ["fp8", "nvfp4"], ["fp8"]),
        Difference("assign.budget.bits_per_weight", 6.5, None),
        Difference("assign.budget.weight_bytes", None, 100),
        Difference("output", "c", "d"),
    ]


def test_a_section_that_only_one_has_is_listed_value_by_value():
    (found,) = recipe_differences(recipe(), recipe(gate={"max_kl": 0.1}))
    assert str(found) == "gate.max_kl: (not set) -> 0.1"
    assert str(*recipe_differences(recipe(gate={"max_kl": 0.1}), recipe())) == (
        "gate.max_kl: 0.1 -> (not set)"
    )


def test_keys_of_differences_can_be_set():
    old, new = (load_recipe(GENERAL / f"{name}.yaml") for name in ("quickstart", "ci-gate"))
    found = recipe_differences(old, new)
    assert found
    changed = [f"{d.key}={'null' if d.new is None else d.new}" for d in found]
    assert load_recipe(GENERAL / "quickstart.yaml", changed) == new


def test_diff_ends_as_diff_does(tmp_path: Path):
    same = RUNNER.invoke(app, ["recipe", "diff", *[str(GENERAL / "quickstart.yaml")] * 2])
    assert (same.exit_code, same.output) == (0, "")
    other = RUNNER.invoke(
        app, ["recipe", "diff", *(str(GENERAL / f"{n}.yaml") for n in ("fp8-mixed", "ci-gate"))]
    )
    assert other.exit_code == 1
    assert 'sensitivity.score: "gradient" -> "screened"' in other.output.splitlines()


def test_show_prints_what_loads_again_and_a_run_folder_is_a_recipe(tmp_path: Path):
    shown = RUNNER.invoke(app, ["recipe", "show", str(GENERAL / "fp8-mixed.yaml"), "--set", "pages.seed=7"])
    assert shown.exit_code == 0
    (tmp_path / "recipe.yaml").write_text(shown.output, encoding="utf-8")
    assert load_recipe(tmp_path) == load_recipe(GENERAL / "fp8-mixed.yaml", ["pages.seed=7"])
    diff = RUNNER.invoke(app, ["recipe", "diff", str(GENERAL / "fp8-mixed.yaml"), str(tmp_path)])
    assert diff.output == "pages.seed: 0 -> 7\n"


@pytest.mark.parametrize("command", [["show"], ["diff", str(GENERAL / "ci-gate.yaml")]])
def test_a_folder_without_a_recipe_is_refused(command: list[str], tmp_path: Path):
    result = RUNNER.invoke(app, ["recipe", *command, str(tmp_path)])
    assert result.exit_code == 10
    assert "recipe.yaml" in result.stderr
