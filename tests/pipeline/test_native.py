"""``ocrquant assign RUN --as``: the plan of a folder, or of another budget, for another toolkit."""

import pytest
import yaml
from typer.testing import CliRunner

from ocrquant.artifacts import Assignment, Sensitivity
from ocrquant.cli import app
from ocrquant.errors import RecipeError
from ocrquant.formats import Precision
from ocrquant.pipeline import run_recipe
from ocrquant.pipeline.native import plan_as, refuse_with_as
from ocrquant.recipe import load_recipe


def quantizers(text):
    """Bits of the weight quantizer of every linear."""
    entries = yaml.safe_load(text)["quantize"]["quant_cfg"]
    found = {e["quantizer_name"]: e["cfg"]["num_bits"] for e in entries if "cfg" in e}
    return {name.removesuffix(".weight_quantizer"): bits for name, bits in found.items() if "weight_" in name}


def test_every_linear_has_the_format_of_the_plan_or_of_another_budget(write_recipe):
    path = write_recipe(
        sensitivity={"score": "gradient", "candidates": ["fp8", "nvfp4"]},
        weights={"smoothing": False, "scale_search": False, "gptq": False},
    )
    run = run_recipe(load_recipe(path), until="assign")
    plan, groups = Assignment.load(run).groups, Sensitivity.load(run).groups
    bits = {Precision.NVFP4: [2, 1], Precision.FP8: [4, 3]}
    expected = {
        linear: bits[plan[group.name]]
        for group in groups
        for linear in group.linears
        if plan[group.name] is not Precision.BF16
    }
    assert quantizers(plan_as(run, [], "modelopt")) == expected
    result = CliRunner().invoke(app, ["assign", str(run), "--as", "modelopt"])
    assert result.exit_code == 0
    assert quantizers(result.stdout) == expected

    before = (run / Assignment.FILE_NAME).read_bytes()
    text = plan_as(run, ["assign.budget={bits_per_weight: 4.5}"], "llm-compressor")
    modifier = yaml.safe_load(text)["quant_stage"]["quant_modifiers"]["QuantizationModifier"]
    assert {g["weights"]["num_bits"] for g in modifier["config_groups"].values()} == {4}
    assert (run / Assignment.FILE_NAME).read_bytes() == before


def test_a_recipe_is_no_run_folder(tmp_path):
    with pytest.raises(RecipeError, match="--as: expected a run folder"):
        plan_as(tmp_path / "recipe.yaml", [], "modelopt")


def test_options_without_effect_are_refused():
    refuse_with_as({"--write": False, "--explain": None})
    with pytest.raises(RecipeError, match="got --explain; leave --explain out"):
        refuse_with_as({"--write": False, "--explain": "lm_head"})
