"""The map of the tiny model, name by name, and every way in which a folder can be unusable."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from ocrquant.adapters import ModelMap, drafter_folder, model_folder, read_model_map
from ocrquant.errors import AlreadyQuantizedError, ModelError
from ocrquant.formats import Precision

LAYERS = "model.language_model.layers"


@pytest.fixture(scope="module")
def tiny_map(tiny_model_folder: Path) -> ModelMap:
    return read_model_map(tiny_model_folder)


def test_groups_are_exactly_those_of_the_structure(tiny_map):
    found = {g.name: [(x.name, x.out_features, x.in_features) for x in g.linears] for g in tiny_map.groups}
    wanted = {}
    for i in range(3):
        gdn, mlp = f"{LAYERS}.{i}.linear_attn", f"{LAYERS}.{i}.mlp"
        wanted[f"layers.{i}.gdn.qkvz"] = [(f"{gdn}.in_proj_qkv", 256, 64), (f"{gdn}.in_proj_z", 128, 64)]
        wanted[f"layers.{i}.gdn.out"] = [(f"{gdn}.out_proj", 64, 128)]
        wanted[f"layers.{i}.mlp.gate_up"] = [(f"{mlp}.gate_proj", 128, 64), (f"{mlp}.up_proj", 128, 64)]
        wanted[f"layers.{i}.mlp.down"] = [(f"{mlp}.down_proj", 64, 128)]
    attention, mlp = f"{LAYERS}.3.self_attn", f"{LAYERS}.3.mlp"
    wanted["layers.3.attention.qkv"] = [
        (f"{attention}.q_proj", 256, 64),  # the query and its output gate
        (f"{attention}.k_proj", 64, 64),
        (f"{attention}.v_proj", 64, 64),
    ]
    wanted["layers.3.attention.o"] = [(f"{attention}.o_proj", 64, 128)]
    wanted["layers.3.mlp.gate_up"] = [(f"{mlp}.gate_proj", 128, 64), (f"{mlp}.up_proj", 128, 64)]
    wanted["layers.3.mlp.down"] = [(f"{mlp}.down_proj", 64, 128)]
    wanted["lm_head"] = [("lm_head", 320, 64)]
    assert found == wanted
    assert list(found) == list(wanted)
    assert {(g.kind, g.block) for g in tiny_map.groups if g.block in (3, None)} == {
        ("attention.qkv", 3),
        ("attention.o", 3),
        ("mlp.gate_up", 3),
        ("mlp.down", 3),
        ("lm_head", None),
    }
    assert not any(linear.has_bias for linear in tiny_map.linears())
    assert tiny_map.num_weights == 3 * (384 * 64 + 64 * 128 * 4) + 384 * 64 + 64 * 128 * 4 + 320 * 64


def test_recurrence_gates_are_kept_with_a_reason(tiny_map):
    names = [f"{LAYERS}.{i}.linear_attn.{name}" for i in range(3) for name in ("in_proj_b", "in_proj_a")]
    assert list(tiny_map.kept) == names
    assert all("recurrence" in reason for reason in tiny_map.kept.values())
    assert [group.name for group in tiny_map.kept_groups] == [f"layers.{i}.gdn.ba" for i in range(3)]
    assert tiny_map.group("layers.1.gdn.ba").linears[1].name == f"{LAYERS}.1.linear_attn.in_proj_a"
    with pytest.raises(KeyError):
        tiny_map.group("layers.3.gdn.ba")


def test_norm_folds_name_every_reader(tiny_map):
    folds = {fold.norm: fold.linears for fold in tiny_map.norm_folds}
    gdn, attention = f"{LAYERS}.0.linear_attn", f"{LAYERS}.3.self_attn"
    assert folds[f"{LAYERS}.0.input_layernorm"] == tuple(
        f"{gdn}.in_proj_{name}" for name in ("qkv", "z", "b", "a")
    )
    assert folds[f"{LAYERS}.3.input_layernorm"] == tuple(f"{attention}.{n}_proj" for n in "qkv")
    assert folds[f"{LAYERS}.2.post_attention_layernorm"] == (
        f"{LAYERS}.2.mlp.gate_proj",
        f"{LAYERS}.2.mlp.up_proj",
    )
    assert folds["model.language_model.norm"] == ("lm_head",)
    assert len(folds) == 9
    assert all(fold.offset for fold in tiny_map.norm_folds)


def test_vision_and_the_rest(tiny_map):
    block = [
        f"model.visual.blocks.0.{n}" for n in ("attn.qkv", "attn.proj", "mlp.linear_fc1", "mlp.linear_fc2")
    ]
    merger = [f"model.visual.merger.linear_fc{n}" for n in (1, 2)]
    assert {*block, *merger} < set(tiny_map.vision_linears)
    assert len(tiny_map.vision_linears) == 10
    assert set(tiny_map.vision_linears) | {"model.visual.pos_embed", "model.visual.patch_embed.proj"} < set(
        tiny_map.vision
    )
    assert all(name.startswith("model.visual.") for name in tiny_map.vision)
    assert tiny_map.kv_attention == (f"{LAYERS}.3.self_attn",)
    assert (tiny_map.mtp, tiny_map.other, tiny_map.tied_head) == ((), (), False)
    assert (tiny_map.num_blocks, tiny_map.block_prefix, tiny_map.max_positions) == (4, LAYERS, 4096)


def test_tensors_come_from_the_headers(tiny_map, tiny_model_folder):
    loaded = load_file(tiny_model_folder / "model.safetensors")
    assert {name: t.shape for name, t in tiny_map.tensors.items()} == {
        n: tuple(t.shape) for n, t in loaded.items()
    }
    assert {t.dtype for t in tiny_map.tensors.values()} == {"BF16"}
    assert tiny_map.num_bytes == sum(t.numel() * 2 for t in loaded.values())
    head = tiny_map.tensors["lm_head.weight"]
    assert (head.num_elements, head.num_bytes, head.file) == (20480, 40960, "model.safetensors")


def test_module_names_are_those_of_the_loaded_model(tiny_map, document_model):
    names = [linear.name for group in (*tiny_map.groups, *tiny_map.kept_groups) for linear in group.linears]
    for name in (*names, *tiny_map.vision_linears):
        assert isinstance(document_model.linear(name), torch.nn.Linear)
    modules = {n for n, m in document_model.model.named_modules() if isinstance(m, torch.nn.Linear)}
    assert modules == {*names, *tiny_map.vision_linears}


def test_sizes_follow_the_formats(tiny_map):
    group = tiny_map.group("layers.0.mlp.gate_up")
    assert (group.num_weights, group.in_features) == (2 * 128 * 64, 64)
    assert group.weight_bytes(Precision.BF16) == 32768
    assert group.weight_bytes(Precision.FP8) == 16384 + 2 * 128 * 4  # one fp32 scale a row
    assert (
        group.weight_bytes(Precision.NVFP4) == 8192 + 1024 + 2 * 4
    )  # half bytes, a scale byte in 16, a global one


def test_tied_head_is_kept(changed):
    def tie(config):
        config["tie_word_embeddings"] = config["text_config"]["tie_word_embeddings"] = True

    found = read_model_map(changed(tie, lambda tensors: tensors.pop("lm_head.weight")))
    assert found.tied_head
    assert found.kept["lm_head"] == "shares the weight of the embedding"
    assert "lm_head" not in {group.name for group in found.groups}
    assert "model.language_model.norm" not in {fold.norm for fold in found.norm_folds}


@pytest.mark.parametrize("where", ["text", "top"])
def test_either_key_ties_the_head(changed, where):
    def tie(config):
        (config["text_config"] if where == "text" else config)["tie_word_embeddings"] = True

    found = read_model_map(changed(tie))
    assert found.tied_head
    assert found.other == ()


def test_absent_members_leave_the_group_smaller(changed):
    def remove(tensors):
        del tensors[f"{LAYERS}.3.self_attn.v_proj.weight"]
        del tensors[f"{LAYERS}.0.mlp.down_proj.weight"]

    found = read_model_map(changed(tensors=remove))
    names = [linear.name for linear in found.group("layers.3.attention.qkv").linears]
    assert names == [f"{LAYERS}.3.self_attn.q_proj", f"{LAYERS}.3.self_attn.k_proj"]
    assert {f.norm: f.linears for f in found.norm_folds}[f"{LAYERS}.3.input_layernorm"] == tuple(names)
    with pytest.raises(KeyError):
        found.group("layers.0.mlp.down")


def test_mtp_and_unknown_tensors_are_listed_and_hold_the_norms_that_they_may_read(changed):
    extra = ("mtp.fc.weight", "mtp.layers.0.self_attn.q_proj.weight", "adapter.weight")
    inside = f"{LAYERS}.0.extra_proj.weight"

    def add(tensors):
        for name in (*extra, inside):
            tensors[name] = torch.zeros(8, 64, dtype=torch.bfloat16)

    found = read_model_map(changed(tensors=add))
    assert found.mtp == extra[:2]
    assert found.other == ("adapter.weight", inside)
    norms = {fold.norm for fold in found.norm_folds}
    assert "model.language_model.norm" not in norms
    assert f"{LAYERS}.0.input_layernorm" not in norms
    assert f"{LAYERS}.1.input_layernorm" in norms
    assert len(found.groups) == 17


def test_biases_are_seen(changed):
    def add(tensors):
        tensors[f"{LAYERS}.3.self_attn.q_proj.bias"] = torch.zeros(256, dtype=torch.bfloat16)

    found = read_model_map(changed(tensors=add))
    assert [x.has_bias for x in found.group("layers.3.attention.qkv").linears] == [True, False, False]
    assert found.other == ()


def test_layer_types_follow_from_the_interval(changed):
    def interval(config):
        del config["text_config"]["layer_types"]
        config["text_config"]["full_attention_interval"] = 4

    assert read_model_map(changed(interval)).kv_attention == (f"{LAYERS}.3.self_attn",)


def shard(folder: Path) -> dict[str, str]:
    """Splits the weights over two files and returns the index."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    where = {}
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        file = f"model-0000{number}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, folder / file, metadata={"format": "pt"})
        where |= dict.fromkeys(part, file)
    return where


def write_index(folder: Path, where: dict[str, str]) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))


def test_shards_read_as_one(changed, tiny_map):
    folder = changed()
    write_index(folder, shard(folder))
    found = read_model_map(folder)
    assert found.groups == tiny_map.groups
    assert {n: t.shape for n, t in found.tensors.items()} == {n: t.shape for n, t in tiny_map.tensors.items()}
    assert len({t.file for t in found.tensors.values()}) == 2


def test_missing_shard(changed):
    folder = changed()
    write_index(folder, shard(folder))
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelError, match=r"expected model-00002-of-00002.safetensors, got no such file"):
        read_model_map(folder)


def test_index_that_disagrees_with_its_shards(changed):
    folder = changed()
    where = shard(folder)
    write_index(folder, {**where, "lm_head.extra": "model-00001-of-00002.safetensors"})
    with pytest.raises(ModelError, match=r"lm_head.extra in model-00001.*1 absent"):
        read_model_map(folder)
    where.pop("lm_head.weight")
    write_index(folder, where)
    with pytest.raises(ModelError, match=r"lm_head.weight in no shard, got it in"):
        read_model_map(folder)
    write_index(folder, {"a": "../model.safetensors"})
    with pytest.raises(ModelError, match="beside the index"):
        read_model_map(folder)
    write_index(folder, {})
    with pytest.raises(ModelError, match="weight_map"):
        read_model_map(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "Git LFS pointer"),
        (b"", "a header of 0 bytes"),
        (b"\xff" * 64, "a header of"),
        (b"\x02\0\0\0\0\0\0\0[]", "complete safetensors"),
        (b"\x04\0\0\0\0\0\0\0{no}", "complete safetensors"),
    ],
)
def test_damaged_file(changed, content, message):
    folder = changed()
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match=message) as caught:
        read_model_map(folder)
    assert caught.value.exit_code == 12


def test_truncated_file(changed):
    folder = changed()
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:-10])
    with pytest.raises(ModelError, match=rf"{len(data) - 10} bytes where the header describes {len(data)}"):
        read_model_map(folder)


def test_only_other_weights(changed):
    folder = changed()
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(
        ModelError, match=r"got only pytorch_model.bin; save the model with safe_serialization"
    ):
        read_model_map(folder)
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(ModelError, match="got no weights"):
        read_model_map(folder)


def set_key(key, value):
    return lambda config: config.__setitem__(key, value)


def test_unsupported_architecture_names_the_nearest(changed):
    with pytest.raises(ModelError, match=r"got Qwen3_6ForConditionalGeneration; .* Qwen3_5ForConditional"):
        read_model_map(changed(set_key("architectures", ["Qwen3_6ForConditionalGeneration"])))


def test_no_architecture(changed):
    with pytest.raises(ModelError, match="no architecture"):
        read_model_map(changed(lambda config: config.pop("architectures")))


@pytest.mark.parametrize("key", ["quantization_config", "compression_config"])
def test_quantized_by_config(changed, key):
    with pytest.raises(AlreadyQuantizedError, match=key) as caught:
        read_model_map(changed(set_key(key, {"quant_method": "compressed-tensors"})))
    assert caught.value.exit_code == 13


def test_quantized_by_file(changed):
    folder = changed(set_key("quantization_config", None))
    read_model_map(folder)
    (folder / "hf_quant_config.json").write_text("{}")
    with pytest.raises(AlreadyQuantizedError, match="hf_quant_config"):
        read_model_map(folder)


def test_quantized_by_dtype(changed):
    def quantize(tensors):
        name = f"{LAYERS}.0.mlp.up_proj.weight"
        tensors[name] = tensors[name].to(torch.float8_e4m3fn)

    with pytest.raises(AlreadyQuantizedError, match=r"up_proj.weight .*got F8_E4M3"):
        read_model_map(changed(tensors=quantize))


def test_remote_code_only_where_asked_for(changed):
    folder = changed(set_key("auto_map", {"AutoModel": "modeling.Model"}))
    with pytest.raises(ModelError, match="allow_remote_code"):
        read_model_map(folder)
    assert read_model_map(folder, allow_remote_code=True).num_blocks == 4


def test_config_that_contradicts_the_weights(changed):
    def widen(config):
        config["text_config"]["intermediate_size"] = 96

    with pytest.raises(
        ModelError, match=r"gate_proj.weight in model.safetensors: expected \[96, 64\].*\[128, 64\]"
    ):
        read_model_map(changed(widen))


def test_config_without_a_key(changed):
    with pytest.raises(ModelError, match="a key 'head_dim'"):
        read_model_map(changed(lambda config: config["text_config"].pop("head_dim")))


def test_unknown_layer_type(changed):
    def rename(config):
        config["text_config"]["layer_types"][1] = "sliding_attention"

    with pytest.raises(ModelError, match="got sliding_attention"):
        read_model_map(changed(rename))


def test_head_that_is_neither_there_nor_tied(changed):
    with pytest.raises(ModelError, match="tie_word_embeddings is false"):
        read_model_map(changed(tensors=lambda tensors: tensors.pop("lm_head.weight")))


@pytest.mark.parametrize("name", ["config.json", "preprocessor_config.json", "tokenizer.json"])
def test_missing_file(changed, name):
    folder = changed()
    (folder / name).unlink()
    with pytest.raises(ModelError, match=name):
        read_model_map(folder)


@pytest.mark.parametrize("content", ["[]", "{", "\udcff"])
def test_config_that_is_no_object(changed, content):
    folder = changed()
    (folder / "config.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(ModelError, match="a JSON object"):
        read_model_map(folder)


def test_model_folder(tmp_path, monkeypatch):
    assert model_folder(tmp_path) == tmp_path
    monkeypatch.setenv("HOME", str(tmp_path))
    assert model_folder("~") == tmp_path
    with pytest.raises(ModelError, match="no such folder"):
        model_folder(tmp_path / "absent")
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match="a file"):
        model_folder(tmp_path / "file")


def test_shipped_model_lies_inside_the_package(tmp_path, monkeypatch):
    package = tmp_path / "ocrquant"
    monkeypatch.setattr("ocrquant.adapters.headers.PACKAGE", package)
    with pytest.raises(ModelError, match=r"pico: expected its folder .*pico/model"):
        model_folder("pico")
    shutil.os.makedirs(package / "pico" / "model")
    assert model_folder("pico") == package / "pico" / "model"


def test_drafter_folder(tmp_path, monkeypatch):
    assert drafter_folder(tmp_path) == tmp_path
    with pytest.raises(ModelError, match="folder of a drafter, or one of pico-dflash, pico-dflash2"):
        drafter_folder(tmp_path / "absent")
    monkeypatch.setattr("ocrquant.adapters.headers.PACKAGE", tmp_path)
    with pytest.raises(ModelError, match="train one with ocrquant drafter train"):
        drafter_folder("pico-dflash2")
    inside = tmp_path / "pico" / "drafters" / "dflash2"
    inside.mkdir(parents=True)
    assert drafter_folder("pico-dflash2") == inside
