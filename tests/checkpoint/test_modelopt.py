import pytest

from ocrquant.checkpoint import FILE_FORMATS, LinearNames
from ocrquant.checkpoint.modelopt import is_excluded
from ocrquant.errors import ModelError
from ocrquant.formats import Precision

BF16, FP8, NVFP4 = Precision.BF16, Precision.FP8, Precision.NVFP4
ROW = FILE_FORMATS["modelopt"]


def described(precisions, untouched=("visual.proj",), kv_cache=False):
    names = LinearNames(precisions=precisions, block_prefix="model.layers", untouched=untouched)
    return ROW.describe(names, kv_cache=kv_cache)


def test_a_uniform_plan_by_hand():
    found = described({"model.layers.0.down": NVFP4, "model.layers.0.gate": BF16, "lm_head": BF16})
    excluded = ["lm_head", "model.layers.0.gate", "visual*"]
    producer = {"name": "modelopt", "version": "0.47.0"}
    assert found.files == {
        "hf_quant_config.json": {
            "producer": producer,
            "quantization": {
                "quant_algo": "NVFP4",
                "group_size": 16,
                "kv_cache_quant_algo": None,
                "exclude_modules": excluded,
            },
        }
    }
    said = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16}
    assert found.quantization_config == {
        "config_groups": {"group_0": {"input_activations": said, "weights": said, "targets": ["Linear"]}},
        "ignore": excluded,
        "quant_algo": "NVFP4",
        "producer": producer,
        "quant_method": "modelopt",
    }


def test_a_mixed_plan_by_hand():
    found = described({"a": FP8, "b": NVFP4, "c": BF16}, kv_cache=True)
    assert found.files["hf_quant_config.json"]["quantization"] == {
        "quant_algo": "MIXED_PRECISION",
        "kv_cache_quant_algo": "FP8",
        "quantized_layers": {
            "a": {"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"},
            "b": {"quant_algo": "NVFP4", "group_size": 16},
        },
    }
    said = found.quantization_config
    assert [group["targets"] for group in said["config_groups"].values()] == [["a"], ["b"]]
    assert said["kv_cache_scheme"] == {"dynamic": False, "num_bits": 8, "type": "float"}
    ROW.check(said, found.files)
    assert [ROW.declared(said, name) for name in "abc"] == [(FP8, False), (NVFP4, False), (None, False)]


def test_experts_that_stay_beside_a_shared_one_that_does_not_are_excluded():
    """Else vLLM takes them for whatever the shared expert is."""
    mlp = "model.layers.{}.mlp"
    plan = {"model.layers.0.o": FP8}
    for layer, (experts, shared) in enumerate([(BF16, NVFP4), (NVFP4, NVFP4), (BF16, BF16)]):
        plan |= {f"{mlp.format(layer)}.experts.{i}.down": experts for i in range(2)}
        plan[f"{mlp.format(layer)}.shared_expert.down"] = shared
    found = described(plan)
    (file,) = found.files.values()
    excluded = [f"{mlp.format(0)}.experts*"]
    assert file["quantization"]["exclude_modules"] == found.quantization_config["ignore"] == excluded
    ROW.check(found.quantization_config, found.files)
    for name, precision in plan.items():
        assert ROW.declared(found.quantization_config, name)[0] == (None if precision is BF16 else precision)


def test_nothing_quantized_gives_no_configuration():
    assert described({"a": BF16}) is None
    said = described({"a": BF16}, kv_cache=True).quantization_config
    ROW.check(said, {})
    assert "quant_algo" not in said


@pytest.mark.parametrize(
    ("precisions", "name"),
    [
        # vLLM takes an excluded name as part of another one: a router `gate` would take `gate_proj` along.
        ({"model.layers.0.mlp.gate": BF16, "model.layers.0.mlp.gate_proj": FP8}, "gate_proj"),
        ({"model.visual_text.proj": FP8}, "visual_text"),
    ],
)
def test_names_that_a_server_cannot_tell_apart_are_refused(precisions, name):
    with pytest.raises(ModelError, match=name):
        described(precisions, untouched=("model.visual.proj",))


def test_exclusion_is_that_of_vllm():
    assert is_excluded("language_model.lm_head", ["lm_head"])
    assert is_excluded("model.visual.blocks.0.qkv", ["model.visual*"])
    assert not is_excluded("model.layers.0.mlp.up_proj", ["model.visual*", "model.layers.0.mlp.up_proj2"])


def test_uniform_rule_says_so():
    said = described({"a": NVFP4, "b": BF16}).quantization_config
    assert (ROW.declared(said, "a"), ROW.declared(said, "b")) == ((NVFP4, True), (None, False))
