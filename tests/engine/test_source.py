import json
import shutil

import pytest
import torch

from ocrquant.engine.source import CheckpointSource, check_declared
from ocrquant.errors import ModelError
from ocrquant.formats import Precision
from ocrquant.formats.weights import FP8Weight


def read_config(folder):
    return json.loads((folder / "config.json").read_text())


def open_source(folder):
    return CheckpointSource(folder, read_config(folder))


def test_a_model_in_bf16(tiny_model_folder):
    with open_source(tiny_model_folder) as source:
        names = source.names()
        name = "model.language_model.layers.0.mlp.gate_proj"
        assert f"{name}.weight" in names
        assert source.quantized(name) is None
        assert source.input_encode_scale(name) is None
        assert source.kv_scales("model.language_model.layers.3.self_attn") is None
        assert source.tensor(f"{name}.weight").dtype == torch.bfloat16
        assert source.num_bytes == 2 * source.num_parameters


QUANTIZED = {
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "config_groups": {
            "group_0": {"targets": ["re:.*gate_proj$", "up"], "weights": {"num_bits": 4}},
            "group_1": {"targets": ["down"], "weights": {"num_bits": 8}},
        },
        "ignore": ["re:.*head$"],
        "kv_cache_scheme": {"num_bits": 8},
    }
}
STORED = {"a.gate_proj": Precision.NVFP4, "up": Precision.NVFP4, "down": Precision.FP8}
NAMES = {"a.gate_proj.weight", "up.weight", "down.weight", "lm_head.weight", "bias", "norm.weight"}


def check(tmp_path, config=QUANTIZED, stored=STORED, names=NAMES, has_kv=True):
    check_declared(tmp_path, config, stored, names, has_kv=has_kv)


def test_what_is_stored_as_declared_passes(tmp_path):
    check(tmp_path)
    check(tmp_path, {}, {}, NAMES, has_kv=False)


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        ({**STORED, "up": Precision.FP8}, "up .*expected nvfp4, as quantization_config says, got fp8"),
        ({**STORED, "lm_head": Precision.FP8}, "lm_head .*expected no quantized weight.*got fp8"),
        ({**STORED, "norm": Precision.FP8}, "norm .*expected no quantized weight.*got fp8"),
        ({k: v for k, v in STORED.items() if k != "down"}, "down .*expected fp8.*got an unquantized weight"),
    ],
)
def test_what_is_stored_otherwise_is_refused(tmp_path, stored, message):
    with pytest.raises(ModelError, match=message):
        check(tmp_path, stored=stored)


def test_scales_and_scheme_of_the_cache_go_together(tmp_path):
    with pytest.raises(ModelError, match="a scheme and no scales"):
        check(tmp_path, has_kv=False)
    with pytest.raises(ModelError, match="scales and no scheme"):
        check(tmp_path, {}, {}, NAMES, has_kv=True)


def test_a_class_name_means_every_stored_linear(tmp_path):
    groups = {"g": {"targets": ["Linear"], "weights": {"num_bits": 8}}}
    config = {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": groups}}
    check(tmp_path, config, {"down": Precision.FP8}, {"down.weight", "norm.weight"}, has_kv=False)
    with pytest.raises(ModelError, match="expected fp8.*got nvfp4"):
        check(tmp_path, config, {"down": Precision.NVFP4}, {"down.weight"}, has_kv=False)


def test_a_linear_that_the_config_does_not_know_is_refused(tiny_model_folder, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(tiny_model_folder, folder)
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    name = "model.language_model.layers.0.mlp.gate_proj"
    weight = tensors[f"{name}.weight"]
    codes = FP8Weight(codes=weight.to(torch.float8_e4m3fn), decode_scale=torch.ones(len(weight), 1))
    tensors |= {f"{name}.weight": codes.codes, f"{name}.weight_scale": codes.decode_scale}
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelError):
        open_source(folder)
