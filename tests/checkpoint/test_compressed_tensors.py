import copy
import json

import pytest
import torch
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.quantization import (
    QuantizationConfig,
    QuantizationStatus,
    apply_quantization_config,
    preset_name_to_scheme,
)
from safetensors.torch import save_file

from ocrquant.checkpoint import FILE_FORMATS, LinearNames, StoredCheckpoint
from ocrquant.errors import ModelError, ShapeError
from ocrquant.formats import FORMATS, Precision, fp8, nvfp4
from ocrquant.formats.weights import FP8Weight

BF16, FP8, NVFP4 = Precision.BF16, Precision.FP8, Precision.NVFP4


ROW = FILE_FORMATS["compressed-tensors"]


def config_of(*precisions: Precision, kv_cache: bool = False):
    names = {f"model.layers.{number}.mlp.down_proj": p for number, p in enumerate(precisions)}
    linears = LinearNames(precisions=names, block_prefix="model.layers", untouched=["visual.proj"])
    found = ROW.describe(linears, kv_cache=kv_cache)
    assert found is None or found.files == {}
    return None if found is None else found.quantization_config


def test_mixed_config_is_what_the_library_writes():
    data = config_of(FP8, NVFP4, BF16, kv_cache=True)
    config = QuantizationConfig.model_validate(data)
    assert config.quantization_status is QuantizationStatus.COMPRESSED
    again = json.loads(json.dumps(config.model_dump(mode="json")))
    extra = {"sparsity_config": {}, "transform_config": {}, "version": "0.19.0"}
    assert data == again | extra
    assert data["quant_method"] == "compressed-tensors"
    assert data["format"] == "mixed-precision"
    assert [group["format"] for group in data["config_groups"].values()] == [
        "float-quantized",
        "nvfp4-pack-quantized",
    ]
    for group, preset in zip(config.config_groups.values(), ("FP8_DYNAMIC", "NVFP4"), strict=True):
        library = preset_name_to_scheme(preset, group.targets)
        assert (group.weights, group.input_activations) == (library.weights, library.input_activations)
    assert data["config_groups"]["group_1"]["input_activations"]["dynamic"] == "local"
    kv = data["kv_cache_scheme"]
    assert (kv["num_bits"], kv["type"], kv["strategy"], kv["dynamic"]) == (8, "float", "tensor", False)


@pytest.mark.parametrize(("precision", "name"), [(FP8, "float-quantized"), (NVFP4, "nvfp4-pack-quantized")])
def test_one_format_is_named_plainly(precision, name):
    data = config_of(precision, BF16)
    assert data["format"] == name
    assert list(data["config_groups"]) == ["group_0"]
    assert data["kv_cache_scheme"] is None


def test_nothing_quantized_gives_no_config():
    assert config_of(BF16, BF16) is None


def test_a_quantized_cache_alone_is_said():
    data = config_of(BF16, kv_cache=True)
    ROW.check(data, {})
    assert (data["format"], data["config_groups"]) == ("dense", {})
    assert data["kv_cache_scheme"]["num_bits"] == 8


def test_specs_take_the_bytes_that_formats_foresee():
    for precision, extra in ((FP8, 0), (NVFP4, 4)):  # the global scale of the input is no part of the weight
        specs = ROW.specs("l", precision, 48, 64)
        assert sum(s.num_bytes for s in specs) == FORMATS[precision].weight_bytes(48, 64) + extra


def test_own_configs_are_known():
    ROW.check(config_of(FP8, NVFP4, kv_cache=True), {})


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("config_groups", "group_0", "weights", "strategy"), "tensor"),
        (("config_groups", "group_0", "weights", "num_bits"), 4),
        (("config_groups", "group_0", "input_activations"), None),
        (("config_groups", "group_1", "weights", "group_size"), 32),
        (("config_groups", "group_1", "input_activations", "dynamic"), True),
        (("kv_cache_scheme", "type"), "int"),
        (("quant_method",), "modelopt"),
        (("quantization_status",), "frozen"),
        (("config_groups",), "nothing"),
        (("config_groups", "group_0", "format"), "nvfp4-pack-quantized"),
        (("config_groups", "group_0", "targets"), ["re:("]),
        (("ignore",), ["re:["]),
        (("transform_config",), {"config_groups": {"all": {"type": "hadamard", "apply": []}}}),
        (("sparsity_config",), {"format": "sparse-bitmask"}),
        (("rotation",), "hadamard"),
    ],
)
def test_foreign_schemes_are_refused(path, value):
    data = copy.deepcopy(config_of(FP8, NVFP4, kv_cache=True))
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(ModelError, match="quantization_config"):
        ROW.check(data, {})


class Model(torch.nn.Module):
    """Two linears whose weights another program quantizes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two, self.three = (torch.nn.Linear(32, 16, bias=False) for _ in range(3))
        self.to(torch.bfloat16)


@pytest.fixture
def foreign_folder(tmp_path):
    """A folder that compressed-tensors itself quantized and packed, with bf16 FP8 scales as it likes them."""
    model = Model()
    groups = {
        "group_0": preset_name_to_scheme("FP8_DYNAMIC", ["one"]),
        "group_1": preset_name_to_scheme("NVFP4", ["two"]),
    }
    config = QuantizationConfig(config_groups=groups, ignore=["three"], quantization_status="frozen")
    apply_quantization_config(model, config, show_progress=False)
    weight = model.two.weight.detach()
    encode_scale = nvfp4.global_encode_scale(weight.abs().amax())
    model.one.weight_scale.data = fp8.weight_decode_scale(model.one.weight, "channel").bfloat16()
    model.two.weight_scale.data = nvfp4.block_decode_scale(weight, encode_scale).bfloat16()
    model.two.weight_global_scale.data = encode_scale
    model.two.input_global_scale.data = torch.tensor([100.0])
    original = {name: p.detach().clone() for name, p in model.named_parameters()}
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    save_file(dict(model.state_dict()), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    compressor.update_config(str(tmp_path))
    return tmp_path, original


@pytest.mark.strict
def test_a_folder_of_another_program_is_read(foreign_folder):
    folder, original = foreign_folder
    with StoredCheckpoint(folder) as stored:
        assert dict(stored.linears) == {"one": FP8, "two": NVFP4}
        assert stored.kv == ()
        one, two = stored.weight("one"), stored.weight("two")
        assert stored.input_encode_scale("one") is None
        assert stored.input_encode_scale("two").tolist() == [100.0]
        assert torch.equal(stored.tensor("three.weight"), original["three.weight"])
    assert isinstance(one, FP8Weight)
    assert one.decode_scale.dtype == torch.float32
    assert torch.equal(one.decode_scale, original["one.weight_scale"].float())
    assert torch.equal(two.encode_scale, original["two.weight_global_scale"])
    # Scales are exact, codes rounded in bf16 arithmetic there: at most a grid step from the source.
    for quantized, name, most in ((one, "one", 0.05), (two, "two", 0.15)):
        source = original[f"{name}.weight"].float()
        assert (quantized.dequantize() - source).norm() / source.norm() < most


@pytest.mark.parametrize(
    ("name", "error"),
    [("two.input_global_scale", ModelError), ("one.weight_scale", ModelError), ("shape", ShapeError)],
)
def test_incomplete_folders_are_refused(foreign_folder, name, error):
    from safetensors.torch import load_file

    folder, _ = foreign_folder
    tensors = load_file(folder / "model.safetensors")
    if name == "shape":
        tensors["two.weight_scale"] = tensors["two.weight_scale"][:, :1].contiguous()
    else:
        del tensors[name]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(error), StoredCheckpoint(folder) as stored:
        stored.weight("two")


def test_quantized_tensors_need_a_config(foreign_folder):
    folder, _ = foreign_folder
    (folder / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="expected a quantization_config, got none, though one is quantized"):
        StoredCheckpoint(folder)
