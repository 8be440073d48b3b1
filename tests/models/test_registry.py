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
]
ROPE_ODD = [
    ("rope_type", "yarn"),
    ("rope_theta", None),
    ("mrope_interleaved", False),
    ("mrope_section", [4, 2, 3]),
    ("mrope_section", [4, 2.0, 2]),
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
