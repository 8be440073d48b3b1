"""Plans as recipes of other toolkits, run by them: every linear gets the plan's format."""

import pytest
import torch
import yaml

from ocrquant.adapters import load_model
from ocrquant.formats import Precision
from ocrquant.toolkits.native import llm_compressor_recipe, modelopt_recipe


@pytest.fixture
def document(tiny_model_folder):
    return load_model(tiny_model_folder, dtype=torch.float32)


@pytest.fixture
def plan(document):
    """NVFP4, FP8 and bf16 in turn, group by group."""
    order = (Precision.NVFP4, Precision.FP8, Precision.BF16)
    return {
        linear.name: order[number % 3]
        for number, group in enumerate(document.map.groups)
        for linear in group.linears
    }


@pytest.fixture
def inputs():
    return {"input_ids": torch.arange(10, 26).view(1, 16)}


def test_llm_compressor_runs_it_and_gives_each_linear_its_format(document, plan, inputs, tmp_path):
    llmcompressor = pytest.importorskip("llmcompressor")
    from torch.utils.data import DataLoader

    path = tmp_path / "recipe.yaml"
    path.write_text(llm_compressor_recipe(plan), encoding="utf-8")
    llmcompressor.oneshot(
        model=document.model,
        recipe=str(path),
        dataset=DataLoader([inputs], batch_size=None),
        processor=object(),
        num_calibration_samples=1,
        pipeline="basic",
    )
    names = {"nvfp4-pack-quantized": Precision.NVFP4, "float-quantized": Precision.FP8}
    bits = {4: Precision.NVFP4, 8: Precision.FP8}
    for name, module in document.model.named_modules():
        if isinstance(module, torch.nn.Linear):
            scheme = getattr(module, "quantization_scheme", None)
            found = Precision.BF16 if scheme is None else bits[scheme.weights.num_bits]
            assert found is plan.get(name, Precision.BF16), name
            assert scheme is None or scheme.format is None or names[str(scheme.format.value)] is found
            if found is Precision.FP8:
                assert module.weight_scale.shape == (module.out_features, 1)
            if found is Precision.NVFP4:
                assert module.weight_scale.shape == (module.out_features, module.in_features // 16)
                assert module.input_global_scale > 0


def test_modelopt_loads_and_runs_it_and_gives_each_linear_its_format(document, plan, inputs, tmp_path):
    pytest.importorskip("modelopt")
    import modelopt.torch.quantization as mtq
    from modelopt.recipe import load_recipe

    from ocrquant.toolkits.modelopt_cpu import block_quantizer_on_cpu

    path = tmp_path / "recipe.yaml"
    path.write_text(modelopt_recipe(plan), encoding="utf-8")
    config = load_recipe(path).quantize
    with torch.no_grad(), block_quantizer_on_cpu():
        model = mtq.quantize(document.model, config, lambda model: model(**inputs))
        assert model(**inputs).logits.isfinite().all()
    for name, module in model.named_modules():
        if hasattr(module, "weight_quantizer") and isinstance(module, torch.nn.Linear):
            expected = plan.get(name, Precision.BF16)
            quantizer = module.weight_quantizer
            assert quantizer.is_enabled == (expected is not Precision.BF16), name
            assert module.input_quantizer.is_enabled == quantizer.is_enabled
            if quantizer.is_enabled:
                assert quantizer.num_bits == {Precision.NVFP4: (2, 1), Precision.FP8: (4, 3)}[expected]
            if expected is Precision.FP8:
                assert quantizer.amax.numel() == module.out_features


def test_linears_that_differ_in_their_block_alone_share_a_pattern():
    name = "model.language_model.layers.{}.mlp.down_proj"
    plan = {name.format(block): Precision.FP8 for block in (0, 2, 11)} | {
        name.format(1): Precision.NVFP4,
        "lm_head": Precision.BF16,
    }
    modifier = yaml.safe_load(llm_compressor_recipe(plan))["quant_stage"]["quant_modifiers"][
        "QuantizationModifier"
    ]
    targets = {len(group["targets"]): group["targets"] for group in modifier["config_groups"].values()}
    eight, four = modifier["config_groups"]["group_0"], modifier["config_groups"]["group_1"]
    assert len(targets) == 1
    assert eight["targets"] == [r"re:^model\.language_model\.layers\.(0|2|11)\.mlp\.down_proj$"]
    assert four["targets"] == [r"re:^model\.language_model\.layers\.1\.mlp\.down_proj$"]
    assert modifier["ignore"] == ["re:^lm_head$"]
