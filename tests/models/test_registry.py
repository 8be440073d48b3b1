import subprocess
import sys

import pytest
import torch

from ocrquant.errors import ModelError
from ocrquant.models.registry import FAMILIES, architecture, build_model
from ocrquant.models.weights import MappingSource
from tests.models import reference

NOTHING = MappingSource({})


def build(config):
    return build_model(config, NOTHING, torch.float32, torch.device("cpu"), max_rows=1)


@pytest.mark.parametrize("names", [None, [], ["LlamaForCausalLM"], list(FAMILIES)])
def test_other_architectures_are_refused(names):
    with pytest.raises(ModelError, match="architectures in config.json"):
        architecture({"architectures": names})


def test_families_are_imported_when_asked_for():
    code = "import sys, ocrquant.models.registry; print([m for m in sys.modules if 'models.families.' in m])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


QWEN_ODD = [
    ("num_hidden_layers", None),
    ("hidden_size", "64"),
    ("hidden_size", True),
    ("hidden_act", "gelu"),
    ("layer_types", ["linear_attention"] * 3 + ["sliding_attention"]),
    ("layer_types", ["linear_attention", "full_attention"]),
    ("linear_conv_kernel_dim", 3),
    ("linear_num_key_heads", 3),
    ("num_key_value_heads", 3),
    ("rms_norm_eps", 0),
    ("attention_bias", "no"),
    ("rms_norm_eps", float("nan")),
    ("attn_output_gate", False),
    ("mamba_ssm_dtype", "bfloat16"),
    ("final_logit_softcapping", 30.0),
    ("sliding_window", 128),
    ("num_experts", 8),
    ("quantization_config", {"quant_method": "fp8"}),
    ("rope_theta", 5.0),
    ("partial_rotary_factor", 0.75),
    ("rope_scaling", {"rope_type": "default", "rope_theta": 7.0}),
]
ROPE_ODD = [
    ("rope_type", "yarn"),
    ("rope_theta", None),
    ("mrope_interleaved", False),
    ("mrope_section", [4, 2, 3]),
    ("mrope_section", [4, 2.0, 2]),
    ("mrope_section", [2, 2, 2, 2]),
    ("mrope_section", [-1, 5, 4]),
    ("rope_theta", float("inf")),
    ("attention_factor", 2.0),
]
VISION_ODD = {
    "qwen3_5": [
        ("deepstack_visual_indexes", [1]),
        ("num_heads", 3),
        ("window_size", 112),
        ("rope_parameters", {"rope_theta": 1e4, "partial_rotary_factor": 0.5}),
        ("rope_parameters", {"rope_type": "default"}),
        ("rope_parameters", {"rope_theta": "1e4"}),
    ],
    "paddleocr_vl": [("layer_norm_eps", 0), ("vision_use_head", True), ("num_attention_heads", 3)],
}
PADDLE_ODD = [
    ("compression_ratio", 2.0),
    ("rope_is_neox_style", False),
    ("use_3d_rope", False),
    ("sliding_window", 64),
    ("scale_qk_coeff", 2.0),
]


@pytest.mark.parametrize(("key", "value"), QWEN_ODD)
def test_what_is_not_computed_is_refused(key, value):
    config = reference.qwen3_5_config().to_dict()
    del config["vision_config"]
    config["text_config"][key] = value
    with pytest.raises(ModelError, match=f"text_config.{key} in config.json"):
        build(config)


@pytest.mark.parametrize(("key", "value"), ROPE_ODD)
def test_positions_that_are_not_computed_are_refused(key, value):
    config = reference.qwen3_5_config().to_dict()
    del config["vision_config"]
    config["text_config"]["rope_parameters"][key] = value
    with pytest.raises(ModelError, match=rf"(rope_parameters.|text_config.){key} in config.json"):
        build(config)


@pytest.mark.parametrize(("key", "value"), PADDLE_ODD)
@pytest.mark.parametrize("flat", [False, True], ids=["sections", "as published"])
def test_what_the_other_family_does_not_compute_is_refused(flat, key, value):
    config = reference.paddleocr_vl_config().to_dict()
    del config["vision_config"]
    text = config.pop("text_config") | {key: value}
    config = text | config if flat else config | {"text_config": text}
    with pytest.raises(ModelError, match=f"{key} in config.json"):
        build(config)


@pytest.mark.parametrize(
    ("family", "key", "value"), [(f, *odd) for f, several in VISION_ODD.items() for odd in several]
)
def test_what_a_tower_does_not_compute_is_refused(family, key, value):
    model = reference.make(family, torch.float32)
    config = model.config.to_dict()
    config["vision_config"][key] = value
    with pytest.raises(ModelError, match=f"vision_config.{key}"):
        build_model(config, MappingSource(model.state_dict()), torch.float32, torch.device("cpu"), max_rows=1)


def test_what_is_switched_off_or_of_no_account_passes():
    off = {"sliding_window": None, "use_sliding_window": False, "mlp_only_layers": [], "future_scale": 0.0}
    text = off | {"attn_output_gate": True, "mtp_num_hidden_layers": 1, "initializer_range": 0.5}
    config = reference.qwen3_5_config().to_dict() | off
    del config["vision_config"]
    config["text_config"] |= text
    with pytest.raises(ModelError, match="missing tensor"):
        build(config)


def test_settings_of_linear_attention_are_of_no_account_without_it():
    config = reference.qwen3_5_config().to_dict()
    del config["vision_config"]
    config["text_config"] |= {"num_hidden_layers": 1, "layer_types": ["full_attention"]}
    with pytest.raises(ModelError, match="missing tensor"):
        build(config)
