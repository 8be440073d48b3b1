"""A folder that stores the experts of a layer as one tensor against the same model expert by expert."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from ocrquant.adapters import load_model, read_model_map
from ocrquant.artifacts import Assignment
from ocrquant.checkpoint import CheckpointReader
from ocrquant.export import Target, convert_checkpoint, write_checkpoint
from ocrquant.formats import Precision
from ocrquant.verify import inspect_checkpoint, verify_checkpoint
from tests.export.conftest import round_model

MLP = "model.language_model.layers.{}.mlp.experts"


@pytest.fixture(scope="module", params=["qwen3_5_moe", "qwen3_vl_moe"])
def stacked(family_folder, request):
    return family_folder(request.param)


@pytest.fixture(scope="module")
def apart(stacked, tmp_path_factory):
    folder = shutil.copytree(stacked, tmp_path_factory.mktemp("apart") / "model")
    with CheckpointReader(stacked) as reader:
        stacks = {weight.stack for weight in reader.stacked.values()}
        names = [name for name in (*reader.specs, *reader.stacked) if name not in stacks]
        weights = {name: reader.read(name) for name in names}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def rounded(stacked, tmp_path_factory):
    return round_model(stacked, tmp_path_factory.mktemp("run"), smoothing=False)


def write(rounded, source, out, groups, kind="compressed-tensors"):
    """Writes a plan; returns the tensors of the folder."""
    with rounded.rounding.open_weights(rounded.run) as weights:
        write_checkpoint(
            source,
            out,
            model_map=read_model_map(source),
            groups=groups,
            weights=weights,
            file_format=kind,
            max_shard_bytes=1 << 30,
        )
    return load_file(out / "model.safetensors")


def equal(one, other):
    """Whether two folders hold the same bits under the same names."""
    bits = ({n: t.reshape(-1).view(torch.uint8) for n, t in tensors.items()} for tensors in (one, other))
    ours, theirs = bits
    return ours.keys() == theirs.keys() and all(torch.equal(ours[n], theirs[n]) for n in ours)


def plan(rounded, *blocks):
    """NVFP4 for the experts of some layers, bf16 for everything else."""
    return {
        group.name: Precision.NVFP4
        if group.kind.startswith("experts.") and group.block in blocks
        else Precision.BF16
        for group in rounded.model_map.groups
    }


def test_the_structure_is_the_same(stacked, apart):
    one, other = read_model_map(stacked), read_model_map(apart)
    assert one.groups == other.groups
    assert one.kept == other.kept
    assert one.norm_folds == other.norm_folds
    assert one.num_bytes == other.num_bytes
    assert one.other == ()


def test_each_expert_is_read_by_itself(stacked):
    document = load_model(stacked)
    with CheckpointReader(stacked) as reader:
        assert len(reader.stacked) == 2 * 4 * 3
        for name, weight in reader.stacked.items():
            assert reader.spec(name).shape == weight.shape
            assert torch.equal(reader.read(name), document.weight(name.removesuffix(".weight")))


@pytest.mark.parametrize("kind", ["compressed-tensors", "modelopt"])
def test_both_give_the_same_checkpoint(rounded, stacked, apart, tmp_path, kind):
    groups = plan(rounded, 0, 1)
    one = write(rounded, stacked, tmp_path / "one", groups, kind)
    other = write(rounded, apart, tmp_path / "other", groups, kind)
    assert equal(one, other)
    assert (tmp_path / "one/config.json").read_bytes() == (tmp_path / "other/config.json").read_bytes()


def test_layers_whose_experts_stay_keep_their_tensors(rounded, stacked, tmp_path):
    written = write(rounded, stacked, tmp_path / "out", plan(rounded, 1))
    source = load_file(stacked / "model.safetensors")
    for part in ("gate_up_proj", "down_proj"):
        name = f"{MLP.format(0)}.{part}"
        assert torch.equal(written[name], source[name])
        assert f"{MLP.format(1)}.{part}" not in written
    assert f"{MLP.format(1)}.3.up_proj.weight_packed" in written


@pytest.mark.parametrize("blocks", [(1,), (0, 1)])
@pytest.mark.parametrize("kind", ["compressed-tensors", "modelopt"])
def test_it_verifies_and_converts(rounded, stacked, tmp_path, kind, blocks):
    groups = plan(rounded, *blocks)
    written = write(rounded, stacked, tmp_path / "out", groups, kind)
    assignment = Assignment.model_construct(groups=groups, kv_cache="bf16")
    found = verify_checkpoint(tmp_path / "out", source=stacked, plan=assignment)
    assert [item.code for item in found.items] == []
    kinds = {row.kind: row for row in inspect_checkpoint(tmp_path / "out").kinds if row.scheme == "NVFP4"}
    assert kinds["experts.down"].num_linears == 4 * len(blocks)
    back = convert_checkpoint(tmp_path / "out", tmp_path / "there", target=None).name
    assert back != kind
    convert_checkpoint(tmp_path / "there", tmp_path / "back", target=Target.parse("vllm"), file_format=kind)
    again = load_file(tmp_path / "back/model.safetensors")
    assert equal(again, written)


def test_an_expert_that_was_damaged_is_found(rounded, stacked, tmp_path):
    write(rounded, stacked, tmp_path / "out", plan(rounded, 1))
    weights = load_file(tmp_path / "out/model.safetensors")
    weights[f"{MLP.format(0)}.down_proj"][3, 0, 0] += 1
    packed = f"{MLP.format(1)}.2.gate_proj.weight_packed"
    weights[packed] = (weights[packed] >> 4) | (weights[packed] << 4)
    save_file(weights, tmp_path / "out/model.safetensors", metadata={"format": "pt"})
    found = {item.code: item.what for item in verify_checkpoint(tmp_path / "out", source=stacked).items}
    assert found["untouched-changed"] == f"{MLP.format(0)}.down_proj"
    assert found["error-too-large"] == packed.removesuffix(".weight_packed")


@pytest.mark.parametrize("kind", ["compressed-tensors", "modelopt"])
def test_experts_of_one_layer_in_two_formats_are_found(rounded, stacked, tmp_path, kind):
    groups = plan(rounded, 0, 1) | {"layers.1.experts.down": Precision.BF16}
    write(rounded, stacked, tmp_path / "out", groups, kind)
    (found,) = verify_checkpoint(tmp_path / "out", source=stacked).items
    assert (found.code, found.what) == ("experts-disagree", MLP.format(1))


def test_experts_that_a_server_takes_for_their_shared_expert_are_found(family_folder, tmp_path):
    """vLLM 0.32 on ModelOpt's mixed files; this package excludes such experts by name."""
    source = family_folder("qwen3_5_moe")
    rounded = round_model(source, tmp_path / "run", smoothing=False)
    kinds = {"shared.down": Precision.NVFP4, "attention.o": Precision.FP8}
    groups = {group.name: kinds.get(group.kind, Precision.BF16) for group in rounded.model_map.groups}
    write(rounded, source, tmp_path / "out", groups, "modelopt")
    assert verify_checkpoint(tmp_path / "out", source=source).items == []
    for name, key in (("config.json", "quantization_config"), ("hf_quant_config.json", "quantization")):
        path = tmp_path / "out" / name
        said = json.loads(path.read_text())
        said[key] = {k: v for k, v in said[key].items() if k not in ("ignore", "exclude_modules")}
        path.write_text(json.dumps(said))
    found = {item.what for item in verify_checkpoint(tmp_path / "out").items if item.severity == "error"}
    assert {name.partition(".experts")[0] for name in found} == {
        f"model.language_model.layers.{layer}.mlp" for layer in range(2)
    }
