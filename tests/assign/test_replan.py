"""A run folder under another budget, in words, and its command."""

import re

import pytest
import yaml
from typer.testing import CliRunner

from ocrquant.artifacts import Assignment, Pareto, RunFolder
from ocrquant.assign import assign
from ocrquant.assign.replan import budget_override, replan
from ocrquant.cli import app
from ocrquant.errors import BudgetError, PatternError, RecipeError
from ocrquant.formats import Precision
from ocrquant.recipe import load_recipe
from tests.assign.builders import sensitivity_of

BF16, FP8, NVFP4 = Precision.BF16, Precision.FP8, Precision.NVFP4
SCORES = {
    "layers.0.down": {FP8: 1e-4, NVFP4: 4e-3},
    "layers.1.down": {FP8: 2e-4, NVFP4: 1e-3},
    "lm_head": {FP8: 3e-4, NVFP4: 9e-3},
}


@pytest.fixture
def folder(tmp_path):
    """A run folder with scores and a plan of 8 bits."""
    recipe = {
        "model": {"path": "pico"},
        "pages": {"source": "pages", "num_calibration_pages": 8, "num_heldout_pages": 4},
        "sensitivity": {"candidates": ["fp8", "nvfp4"], "score": "kl"},
        "weights": {"num_held_back_pages": 1},
        "assign": {"budget": {"bits_per_weight": 8}},
        "output": str(tmp_path / "run"),
    }
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(recipe))
    resolved = load_recipe(file)
    with RunFolder.open(
        tmp_path / "run", recipe_digest=resolved.digest(), recipe_text=resolved.to_yaml()
    ) as run:
        run.save(sensitivity_of(SCORES))
        assign(run, sensitivity_of(SCORES), resolved.assign, {})
    return tmp_path / "run"


def test_sums_and_differences_and_nothing_written(folder):
    before = {path: path.read_bytes() for path in folder.iterdir()}
    lines = replan(folder, ["assign.budget={bits_per_weight: 7}"], layer=None).splitlines()
    # 8 + 8 + 4.5 is 20.5 of 21.
    assert lines[0].startswith("plan      6.833 bits a weight, ")
    assert "predicted loss 0.0014 nats a token by kl scores, keys and values bf16" in lines[0]
    assert lines[1].startswith("present   8 bits a weight, ")
    assert lines[2] == "differs   1 of 3 groups"
    assert lines[3] == "  layers.1.down: fp8 -> nvfp4, -2,044 bytes, +0.0008 nats a token"
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_explanation_names_margin_and_trade(folder):
    text = replan(folder, ["assign.budget={bits_per_weight: 7}"], layer="model.layers.0.down")
    assert "layers.0.down is fp8" in text
    # nvfp4 -> fp8 of layers.1.down gains 8e-4 for 2,044 bytes, fp8 -> nvfp4 here loses 3.9e-3.
    assert "At this budget one MiB more would gain up to 0.41 nats a token and one less would lose" in text
    assert "It would trade with layers.1.down: itself in nvfp4 and that one in fp8" in text
    assert "add 0.0031 ± 0.0004" in text


def test_step_needs_a_machine(folder):
    with pytest.raises(RecipeError, match=r"assign\.target with assign\.budget\.step_us"):
        replan(folder, ["assign.budget={step_us: 9}"], layer=None)
    given = ["assign.budget={step_us: 9}", "assign.target={device: b200}"]
    text = replan(folder, given, layer="lm_head")
    assert "us, in bf16 " in text
    assert "roofline of b200" in text
    assert "us of a step." in text


def test_swaps_are_left_out_and_that_is_said(folder):
    assert "repair    left out" in replan(folder, ["assign.repair.max_measurements=5"], layer=None)


@pytest.mark.parametrize(
    ("overrides", "layer", "error"),
    [
        (["assign.budget={bits_per_weight: 4}"], None, BudgetError),
        ([], "layers.7.down", PatternError),
        (["assign.limits={downs: {nvfp4: 0.5}}"], None, PatternError),
    ],
)
def test_what_cannot_be_is_refused(folder, overrides, layer, error):
    with pytest.raises(error):
        replan(folder, overrides, layer=layer)


def test_one_budget_only():
    assert budget_override({"bits_per_weight": None, "max_kl": 0.5}) == ["assign.budget={max_kl: 0.5}"]
    assert budget_override({"bits_per_weight": None}) == []
    with pytest.raises(RecipeError, match="got --bits and --max-kl"):
        budget_override({"bits_per_weight": 5.0, "max_kl": 0.5})


@pytest.mark.parametrize(
    "override",
    ["assign.budget.bits_per_weight=4.5", "assign.budget={max_kl: 0.5}", "assign={budget: {max_kl: 0.5}}"],
)
def test_an_option_and_an_assignment_are_two_budgets(folder, override):
    with pytest.raises(RecipeError, match=re.escape(f"got --bits and --set {override}")):
        budget_override({"bits_per_weight": 5.0}, [override])
    assert budget_override({"bits_per_weight": None}, [override]) == []
    result = CliRunner().invoke(app, ["assign", str(folder), "--bits", "7", "--set", override])
    assert result.exit_code == 10, result.output


def test_other_keys_of_assign_go_with_an_option():
    given = budget_override({"max_kl": 0.5}, ["assign.repair.max_measurements=0", "assign={score: kl}"])
    assert given == ["assign.budget={max_kl: 0.5}"]


def test_command_prints_and_writes(folder):
    result = CliRunner().invoke(app, ["assign", str(folder), "--bits", "4.5", "--explain", "lm_head"])
    assert result.exit_code == 0, result.output
    assert "differs   3 of 3 groups" in result.output
    assert "lm_head is nvfp4" in result.output
    assert Assignment.load(folder).bits_per_weight == 8
    result = CliRunner().invoke(app, ["assign", str(folder), "--bits", "4.5", "--write"])
    assert result.exit_code == 0, result.output
    assert set(Assignment.load(folder).groups.values()) == {NVFP4}
    assert load_recipe(folder).assign.budget.bits_per_weight == 4.5
    assert Pareto.load(folder).inputs == Assignment.load(folder).inputs
    again = CliRunner().invoke(app, ["assign", str(folder)])
    assert "differs   0 of 3 groups" in again.output


@pytest.mark.parametrize(
    "option",
    [["--adopt"], ["--device", "cpu"], ["--set", "pages.seed=3"], ["--set", "search.keep_bf16=['*']"]],
)
def test_what_a_run_folder_cannot_follow_is_refused(folder, option):
    before = {path: path.read_bytes() for path in folder.iterdir()}
    result = CliRunner().invoke(app, ["assign", str(folder), "--bits", "7", "--write", *option])
    assert result.exit_code == 10, result.output
    assert option[-1].split("=")[0] in result.output or option[0] in result.output
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
