"""Weights of other toolkits as our artefact: what is stored is theirs, and a whole run goes on from it."""

from pathlib import Path

import pytest
import torch
import yaml

from ocrquant.artifacts import Assignment, Rounding
from ocrquant.formats import Precision, fp8, nvfp4
from ocrquant.pipeline import run_recipe
from ocrquant.recipe import load_recipe

CROPS = Path(__file__).parents[2] / "calibration_data"
NEEDS = {
    "modelopt": "modelopt",
    "llm-compressor-gptq": "llmcompressor",
}


@pytest.fixture
def recipe(tmp_path, tiny_model_folder):
    def make(engine, **weights):
        path = tmp_path / f"{engine}.yaml"
        sections = {
            "model": {"path": str(tiny_model_folder)},
            "pages": {
                "source": str(CROPS),
                "num_calibration_pages": 3,
                "num_heldout_pages": 1,
                "kinds": ["line"],
            },
            "sensitivity": {"candidates": ["nvfp4", "fp8"], "score": "gradient"},
            "weights": {"engine": engine, **weights},
            "assign": {"budget": {"bits_per_weight": 6.0}},
            "output": str(tmp_path / engine),
        }
        path.write_text(yaml.safe_dump(sections), encoding="utf-8")
        return load_recipe(path)

    return make


@pytest.mark.parametrize("engine", NEEDS)
def test_a_run_goes_on_from_another_toolkits_weights(recipe, tiny_model_folder, engine):
    pytest.importorskip(NEEDS[engine])
    from ocrquant.adapters import load_model

    run = run_recipe(recipe(engine), until="assign")
    rounding = Rounding.load(run)
    assert rounding.engine == engine
    document = load_model(tiny_model_folder)
    assert {(g.group, g.precision) for g in rounding.groups} == {
        (group.name, p) for group in document.map.groups for p in (Precision.NVFP4, Precision.FP8)
    }
    assert all(group.steps == [] and group.error is None for group in rounding.groups)
    assert not any(norm.accepted for norm in rounding.norms)
    assert {str(p) for p in Assignment.load(run).groups.values()} >= {"nvfp4"}
    errors = {}
    with rounding.open_weights(run) as weights:
        for group in document.map.groups:
            scales = set()
            for linear in group.linears:
                weight = document.weight(linear.name).float()
                four = weights.weight(linear.name, Precision.NVFP4)
                eight = weights.weight(linear.name, Precision.FP8)
                scales.add(float(four.encode_scale))
                for stored in (four, eight):
                    loss = (stored.dequantize() - weight).square().mean() / weight.square().mean()
                    errors.setdefault(stored.precision, []).append(float(loss))
            assert len(scales) == 1, "a server keeps one global scale of fused linears"
    # Squared errors of rounding: about 1 % in NVFP4 and 0.07 % in FP8; GPTQ trades some of it for the output.
    assert max(errors[Precision.NVFP4]) < 0.05
    assert max(errors[Precision.FP8]) < 0.005


def share_that_differs(found, expected):
    """Ties may fall to the other side, where scales are multiplied in another order."""
    return float((~torch.isclose(found, expected, rtol=1e-5, atol=0)).float().mean())


def test_modelopts_weights_are_the_nearest_ones(recipe, tiny_model_folder):
    pytest.importorskip("modelopt")
    from ocrquant.adapters import load_model

    run = run_recipe(recipe("modelopt"), until="rounding")
    document = load_model(tiny_model_folder)
    with Rounding.load(run).open_weights(run) as weights:
        for group in document.map.groups:
            originals = [document.weight(linear.name).float() for linear in group.linears]
            scale = nvfp4.shared_global_encode_scale(*(w.abs().amax() for w in originals))
            for linear, original in zip(group.linears, originals, strict=True):
                four = nvfp4.quantize(original, scale)
                found = weights.weight(linear.name, Precision.NVFP4)
                assert share_that_differs(found.dequantize(), four.dequantize()) < 1e-3
                eight = fp8.decode(
                    fp8.encode(original, fp8.weight_decode_scale(original, "channel")),
                    fp8.weight_decode_scale(original, "channel"),
                )
                found = weights.weight(linear.name, Precision.FP8)
                assert share_that_differs(found.dequantize(), eight) < 1e-3
