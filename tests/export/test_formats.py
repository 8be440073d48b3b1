"""One plan in two formats: weights equal to the last bit, each by its own reader; equal configurations."""

import json
from functools import partial

import pytest
import torch
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from safetensors.torch import load_file, save_file

from ocrquant.checkpoint import FILE_FORMATS, CheckpointReader, StoredCheckpoint
from ocrquant.engine.source import CheckpointSource
from ocrquant.errors import ModelError, WeightValueError
from ocrquant.export import write_checkpoint
from ocrquant.formats import Precision

DEALT = {"mixed": ("nvfp4", "fp8", "bf16"), "fp8": ("fp8",), "nvfp4": ("nvfp4",)}
MODELOPT_ALGORITHMS = {"FP8_PER_CHANNEL_PER_TOKEN": Precision.FP8, "NVFP4": Precision.NVFP4}


def write(rounded, out, file_format, *precisions, kv=True, max_shard_bytes=10**9):
    with rounded.rounding.open_weights(rounded.run) as weights:
        write_checkpoint(
            rounded.source,
            out,
            model_map=rounded.model_map,
            groups=rounded.plan(*precisions),
            weights=weights,
            kv=rounded.rounding.kv if kv else (),
            file_format=file_format,
            max_shard_bytes=max_shard_bytes,
        )
    return out


@pytest.fixture(scope="module")
def folders(rounded, tmp_path_factory):
    root = tmp_path_factory.mktemp("formats")
    return {
        (kind, name): write(rounded, root / f"{kind}-{name}", name, *precisions)
        for kind, precisions in DEALT.items()
        for name in FILE_FORMATS
    }


def by_compressed_tensors(tensors, linear):
    """What compressed-tensors' own decompressors compute, in float32."""
    if f"{linear}.weight_packed" not in tensors:
        return tensors[f"{linear}.weight"].float() * tensors[f"{linear}.weight_scale"]
    packed = tensors[f"{linear}.weight_packed"]
    rows, half = packed.shape
    values = unpack_fp4_from_uint8(packed, rows, 2 * half, dtype=torch.float32)
    scale = tensors[f"{linear}.weight_scale"].float() / tensors[f"{linear}.weight_global_scale"]
    return (values.view(rows, -1, 16) * scale.unsqueeze(-1)).view(rows, -1)


def by_modelopt(tensors, linear, algorithm):
    """ModelOpt's own dequantizers; transformers would load its folders wrong without a word."""
    from modelopt.torch.quantization.qtensor import FP8QTensor, NVFP4QTensor

    weight, scale = tensors[f"{linear}.weight"], tensors[f"{linear}.weight_scale"]
    if algorithm == "FP8_PER_CHANNEL_PER_TOKEN":
        stored = FP8QTensor(weight.shape, torch.float32, weight)
        return stored.dequantize(torch.float32, scale=scale.view(-1, 1))
    shape = torch.Size((weight.shape[0], 2 * weight.shape[1]))
    return NVFP4QTensor(shape, torch.float32, weight).dequantize(
        torch.float32,
        scale=scale,
        double_scale=tensors[f"{linear}.weight_scale_2"],
        block_sizes={-1: 16},
    )


def tensors_of(folder):
    with CheckpointReader(folder) as reader:
        return {name: reader.read(name) for name in reader.specs}


@pytest.mark.strict
@pytest.mark.parametrize("kind", DEALT)
def test_weights_are_equal_bit_for_bit_by_the_libraries_of_both(rounded, folders, kind):
    plan = rounded.plan(*DEALT[kind])
    one, other = (tensors_of(folders[kind, name]) for name in ("compressed-tensors", "modelopt"))
    with rounded.rounding.open_weights(rounded.run) as weights:
        for group in rounded.model_map.groups:
            precision = plan[group.name]
            for linear in (item.name for item in group.linears):
                if precision is Precision.BF16:
                    assert torch.equal(one[f"{linear}.weight"], other[f"{linear}.weight"])
                    continue
                algorithm = next(a for a, p in MODELOPT_ALGORITHMS.items() if p is precision)
                expected = weights.weight(linear, precision).dequantize()
                assert torch.equal(by_compressed_tensors(one, linear), expected)
                assert torch.equal(by_modelopt(other, linear, algorithm), expected)
    fused = [g for g in rounded.model_map.groups if plan[g.name] is Precision.NVFP4 and len(g.linears) > 1]
    assert kind == "fp8" or {group.kind for group in fused} >= {"gdn.qkvz", "mlp.gate_up"}
    for group in fused:
        assert len({other[f"{linear.name}.weight_scale_2"].item() for linear in group.linears}) == 1


@pytest.mark.parametrize("kind", DEALT)
def test_this_package_reads_both_alike(folders, kind):
    with (
        StoredCheckpoint(folders[kind, "compressed-tensors"]) as one,
        StoredCheckpoint(folders[kind, "modelopt"]) as other,
    ):
        assert dict(one.linears) == dict(other.linears)
        assert (one.kv, one.names, one.num_parameters) == (other.kv, other.names, other.num_parameters)
        for linear in one.linears:
            assert one.shape(linear) == other.shape(linear)
            assert torch.equal(one.weight(linear).dequantize(), other.weight(linear).dequantize())
            scales = one.input_encode_scale(linear), other.input_encode_scale(linear)
            assert scales == (None, None) or torch.equal(*scales)
    for name in FILE_FORMATS:
        folder = folders[kind, name]
        with CheckpointSource(folder, json.loads((folder / "config.json").read_text())) as source:
            assert source.kv_scales("model.language_model.layers.3.self_attn") is not None


def test_tensors_of_modelopt_by_hand(folders):
    """Names, dtypes and shapes of the reference table; 36-wide rows have no NVFP4."""
    specs = {name: (t.dtype, tuple(t.shape)) for name, t in tensors_of(folders["mixed", "modelopt"]).items()}
    down = "model.language_model.layers.0.mlp.down_proj"
    found = {name.removeprefix(f"{down}."): spec for name, spec in specs.items() if name.startswith(down)}
    rows, half = found["weight"][1]
    assert found == {
        "weight": (torch.uint8, (rows, half)),
        "weight_scale": (torch.float8_e4m3fn, (rows, half // 8)),
        "weight_scale_2": (torch.float32, ()),
        "input_scale": (torch.float32, ()),
    }
    fp8 = [n.removesuffix(".weight") for n, (dtype, _) in specs.items() if dtype == torch.float8_e4m3fn]
    fp8 = [name for name in fp8 if not name.endswith("_scale")]
    assert fp8
    for linear in fp8:
        rows = specs[f"{linear}.weight"][1][0]
        assert specs[f"{linear}.weight_scale"] == (torch.float32, (rows,))
        assert not {f"{linear}.input_scale", f"{linear}.weight_scale_2"} & specs.keys()
    attention = "model.language_model.layers.3.self_attn"
    scales = {name: spec for name, spec in specs.items() if name.endswith((".k_scale", ".v_scale"))}
    assert scales == {
        f"{attention}.k_proj.k_scale": (torch.float32, ()),
        f"{attention}.v_proj.v_scale": (torch.float32, ()),
    }


@pytest.mark.strict
@pytest.mark.parametrize("kind", DEALT)
def test_configurations_of_modelopt_are_what_its_exporter_derives(folders, kind):
    from modelopt.torch.export.convert_hf_config import convert_hf_quant_config_format

    folder = folders[kind, "modelopt"]
    file = json.loads((folder / "hf_quant_config.json").read_text())
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    assert config == convert_hf_quant_config_format(file)
    assert file["quantization"]["kv_cache_quant_algo"] == "FP8"
    algorithm = {"mixed": "MIXED_PRECISION", "fp8": "FP8_PER_CHANNEL_PER_TOKEN", "nvfp4": "NVFP4"}[kind]
    assert file["quantization"]["quant_algo"] == config["quant_algo"] == algorithm
    with StoredCheckpoint(folder) as stored:
        if kind == "mixed":
            layers = file["quantization"]["quantized_layers"]
            found = {name: MODELOPT_ALGORITHMS[layer["quant_algo"]] for name, layer in layers.items()}
            assert found == dict(stored.linears)
            assert "exclude_modules" not in file["quantization"]
        else:
            assert "quantized_layers" not in file["quantization"]
            assert file["quantization"]["exclude_modules"][-1] == "model.visual*"


def test_one_precision_gives_a_plain_file(folders):
    for kind, name in (("fp8", "float-quantized"), ("nvfp4", "nvfp4-pack-quantized")):
        path = folders[kind, "compressed-tensors"] / "config.json"
        config = json.loads(path.read_text())["quantization_config"]
        assert (config["format"], list(config["config_groups"])) == (name, ["group_0"])


@pytest.mark.parametrize("name", FILE_FORMATS)
def test_all_other_files_are_those_of_the_source(rounded, folders, name):
    files = {p.relative_to(folders["mixed", name]): p for p in folders["mixed", name].rglob("*")}
    source = {p.relative_to(rounded.source): p for p in rounded.source.rglob("*")}
    assert {str(path) for path in files.keys() ^ source.keys()} == set(FILE_FORMATS[name].file_names)
    kept = [path for path in source if path.suffix != ".safetensors" and path.name != "config.json"]
    assert len(kept) > 3
    for path in kept:
        assert files[path].read_bytes() == source[path].read_bytes()


def alter(folder, change):
    config = json.loads((folder / "config.json").read_text())
    change(config["quantization_config"])
    (folder / "config.json").write_text(json.dumps(config))


def test_files_that_contradict_each_other_are_refused(rounded, tmp_path):
    for number, change in enumerate(
        (
            lambda said: said.pop("kv_cache_scheme"),
            lambda said: said["quantized_layers"].popitem(),
            lambda said: said.update(ignore=["lm_head"]),
        )
    ):
        folder = write(rounded, tmp_path / str(number), "modelopt", *DEALT["mixed"])
        alter(folder, change)
        with pytest.raises(ModelError, match=r"hf_quant_config.json: expected what quantization_config in"):
            StoredCheckpoint(folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda said: said.update(quant_algo="FP8"),
        lambda said: said.update(quant_algo="W4A16_NVFP4"),
        lambda said: said.update(quant_method="modelopt_fp4"),
        lambda said: said.update(kv_cache_scheme={"num_bits": 4, "type": "float", "dynamic": False}),
        lambda said: said.update(quantized_layers={"x": {"quant_algo": "FP8_PB_WO"}}),
        lambda said: said.update(quantized_layers=["x"]),
        lambda said: said.update(quantized_layers={"x": {"quant_algo": "NVFP4", "group_size": 32}}),
        lambda said: said.update(quant_algo="MIXED_PRECISION", quantized_layers={}),
    ],
)
def test_schemes_of_modelopt_that_nobody_computes_here_are_refused(rounded, tmp_path, change):
    folder = write(rounded, tmp_path / "x", "modelopt", "nvfp4")
    (folder / "hf_quant_config.json").unlink()
    alter(folder, change)
    with pytest.raises(ModelError, match="quantization_config"):
        StoredCheckpoint(folder)


def test_a_cache_alone_in_both(rounded, tmp_path):
    for name in FILE_FORMATS:
        with StoredCheckpoint(write(rounded, tmp_path / name, name, "bf16")) as stored:
            assert (dict(stored.linears), list(stored.kv)) == ({}, rounded.rounding.kv)


@pytest.mark.parametrize(
    ("part", "value"),
    [("weight_scale_2", float("inf")), ("weight_scale_2", [1.0, 2.0]), ("weight_scale", None)],
)
def test_damaged_parts_of_modelopt_are_named(rounded, tmp_path, part, value):
    folder = write(rounded, tmp_path / "x", "modelopt", "nvfp4")
    name = f"model.language_model.layers.0.mlp.down_proj.{part}"
    tensors = load_file(folder / "model.safetensors")
    if value is None:
        del tensors[name]
    else:
        tensors[name] = torch.tensor(value)
    save_file(tensors, folder / "model.safetensors")
    read = partial(open_and_read, folder, name.rpartition(".")[0])
    with pytest.raises(WeightValueError if value == float("inf") else ModelError):
        read()


def open_and_read(folder, linear):
    with StoredCheckpoint(folder) as stored:
        return stored.weight(linear)
