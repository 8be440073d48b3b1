"""Which drafter an evaluation reads with, and what `check` refuses of it before any work."""

import json

import pytest
from typer.testing import CliRunner

from ocrquant.cli import app
from ocrquant.errors import ArtifactError, ModelError
from ocrquant.pipeline import run_recipe
from ocrquant.pipeline.check import check_recipe
from ocrquant.pipeline.evaluated_drafter import evaluated_drafter
from ocrquant.recipe import load_recipe
from tests.engine.drafters import make_drafter

EVALUATE = {"max_new_tokens": 6, "batch_size": 2, "num_bootstrap_samples": 100, "arms": ["bf16", "plan"]}
QUICK = {
    "sensitivity": {"score": "gradient", "candidates": ["fp8"], "num_pages": 2},
    "weights": {"smoothing": False, "scale_search": False, "gptq": False},
    "assign": {"budget": {"bits_per_weight": 9.0}},
}


@pytest.fixture(scope="module")
def drafter(tiny_model_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("drafter") / "mine"
    make_drafter(folder, tiny_model_folder, second=True, target_layer_ids=(1, 2))
    return folder


@pytest.fixture
def recipe_with(write_recipe):
    def load(name, **sections):
        return load_recipe(write_recipe(evaluate=EVALUATE | {"drafter": str(name)}, **sections))

    return load


def test_a_recipe_without_a_drafter_names_none(write_recipe):
    recipe = load_recipe(write_recipe())
    assert evaluated_drafter(recipe) is None
    assert "drafter" not in check_recipe(recipe, device="cpu").render()


def test_check_says_what_the_drafter_is(recipe_with, drafter):
    text = check_recipe(recipe_with(drafter), device="cpu").render()
    assert f"drafter   {drafter}: DFlash2, 2 layers, blocks of 8" in text


def test_a_drafter_of_the_run_may_be_missing_before_it_can_be_trained(recipe_with, drafter, tmp_path):
    recipe = recipe_with("run", drafter={"design": "dflash"})
    text = check_recipe(recipe, device="cpu").render()
    assert "drafter   run, not trained yet: ocrquant drafter train" in text
    with pytest.raises(ArtifactError, match="run ocrquant drafter train with the same recipe first"):
        evaluated_drafter(recipe)
    (tmp_path / "run" / "drafter").mkdir(parents=True)
    (tmp_path / "run" / "drafter" / "dflash").symlink_to(drafter)
    assert evaluated_drafter(recipe) == tmp_path / "run" / "drafter" / "dflash"
    assert "drafter   run: DFlash2" in check_recipe(recipe, device="cpu").render()


def test_check_refuses_a_drafter_of_another_target(recipe_with, tiny_model_folder, tmp_path):
    made = {"target_layer_ids": (1, 2)}
    make_drafter(tmp_path / "digest", tiny_model_folder, target_sha256="0" * 64, **made)
    with pytest.raises(ModelError, match="got one made for 000000000000"):
        check_recipe(recipe_with(tmp_path / "digest"), device="cpu")
    make_drafter(tmp_path / "size", tiny_model_folder, hidden_size=32, **made)
    with pytest.raises(ModelError, match="hidden_size: expected 64, that of the model, got 32"):
        check_recipe(recipe_with(tmp_path / "size"), device="cpu")


def test_check_refuses_a_folder_that_is_none(recipe_with, drafter, tmp_path):
    with pytest.raises(ModelError, match="a folder of a drafter, or one of pico-dflash"):
        check_recipe(recipe_with(tmp_path / "absent"), device="cpu")
    half = tmp_path / "half"
    half.mkdir()
    (half / "config.json").write_bytes((drafter / "config.json").read_bytes())
    with pytest.raises(ModelError, match="the weights of the drafter, got none"):
        check_recipe(recipe_with(half), device="cpu")


def test_check_refuses_a_family_that_the_runtime_does_not_run(recipe_with, drafter, monkeypatch):
    monkeypatch.setattr("ocrquant.models.registry.FAMILIES", {"Another": ""})
    with pytest.raises(ModelError, match="a model that the runtime runs: Another, got Qwen3_5"):
        check_recipe(recipe_with(drafter), device="cpu")


def test_the_command_ends_with_the_code_of_its_error(write_recipe, tmp_path):
    recipe = write_recipe(evaluate=EVALUATE | {"drafter": str(tmp_path / "absent")})
    assert CliRunner().invoke(app, ["check", str(recipe)]).exit_code == ModelError.exit_code


def test_the_run_reports_its_drafter_and_another_one_makes_another_report(
    recipe_with, drafter, tiny_model_folder, tmp_path
):
    recipe = recipe_with("run", gate={"min_acceptance_length": 1}, **QUICK)
    with pytest.raises(ArtifactError, match="run ocrquant drafter train"):
        run_recipe(recipe)
    folder = tmp_path / "run" / "drafter" / "dflash2"
    folder.mkdir(parents=True)
    for file in drafter.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    run_recipe(recipe)
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["drafts"]["drafter"] == "run"
    assert report["drafts"]["overall"]["num_pages"] == 3
    assert report["gate"][-1]["threshold"] == "min_acceptance_length"
    digest = report["inputs"]["drafter"]

    make_drafter(folder, tiny_model_folder, block_size=4, target_layer_ids=(1, 2))
    run_recipe(recipe)
    again = json.loads((tmp_path / "run" / "report.json").read_text())
    assert again["inputs"]["drafter"] != digest
    assert again["drafts"]["block_size"] == 4
