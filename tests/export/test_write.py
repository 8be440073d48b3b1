import json
import os
import resource
import shutil
import signal
import time

import pytest
import torch
from safetensors.torch import load_file, save_file

from ocrquant.adapters import read_model_map
from ocrquant.artifacts import Assignment, CheckpointRecord, FileRecord, Rounding, write_tensors
from ocrquant.checkpoint import CheckpointReader, StoredCheckpoint
from ocrquant.errors import ArtifactError, ModelError, OutputError, ShapeError, WeightValueError
from ocrquant.export import CheckpointTensors, export_checkpoint, write_checkpoint
from ocrquant.formats import FORMATS, Precision
from ocrquant.formats.weights import scale_columns, weight_tensors
from ocrquant.recipe.sections import ExportSection
from ocrquant.simulate import SimulatedLinear, rounded_linears, rounded_smoothing

MIXED = ("nvfp4", "fp8", "bf16")


def write(rounded, out, *precisions, kv=False, max_shard_bytes=10**9):
    groups = rounded.plan(*precisions)
    with rounded.rounding.open_weights(rounded.run) as weights:
        return write_checkpoint(
            rounded.source,
            out,
            model_map=rounded.model_map,
            groups=groups,
            weights=weights,
            kv=rounded.rounding.kv if kv else (),
            max_shard_bytes=max_shard_bytes,
        )


def tensors_of(folder):
    with CheckpointReader(folder) as reader:
        return {name: reader.read(name) for name in reader.specs}


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.float(), b.float())


def bytes_of(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def precisions_of(rounded, *precisions):
    groups = rounded.plan(*precisions)
    return {linear.name: groups[g.name] for g in rounded.model_map.groups for linear in g.linears}


@pytest.fixture(scope="module")
def mixed(rounded, tmp_path_factory):
    out = tmp_path_factory.mktemp("mixed") / "checkpoint"
    write(rounded, out, *MIXED, kv=True)
    return out


def test_files_are_those_of_the_source(rounded, mixed):
    source, out = bytes_of(rounded.source), bytes_of(mixed)
    assert out.keys() == source.keys()
    for name in source.keys() - {"config.json", "model.safetensors"}:
        assert out[name] == source[name], name
    config = json.loads(out["config.json"])
    plan = config.pop("quantization_config")
    assert config == json.loads(source["config.json"])
    assert out["config.json"].startswith(source["config.json"].rstrip()[:-1].rstrip())
    assert plan["format"] == "mixed-precision"


def test_every_tensor_is_as_planned(rounded, mixed):
    source, out = tensors_of(rounded.source), tensors_of(mixed)
    expected = {}
    precisions = precisions_of(rounded, *MIXED)
    with rounded.rounding.open_weights(rounded.run) as weights:
        group_of = {n.name: g.name for g in rounded.model_map.groups for n in g.linears}
        for name, tensor in source.items():
            module = name.removesuffix(".weight")
            precision = precisions.get(module, Precision.BF16)
            if precision is not Precision.BF16:
                stored = weight_tensors(weights.weight(module, precision))
                expected |= {f"{module}.{part}": value for part, value in stored.items()}
                if precision is Precision.NVFP4:
                    expected[f"{module}.input_global_scale"] = weights.input_encode_scale(group_of[module])
            elif weights.norm_weight(module) is not None:
                expected[name] = weights.norm_weight(module)
                assert not same(tensor, expected[name])
            elif (factors := weights.smoothing(module)) is not None:
                expected[name] = scale_columns(tensor, factors)
                assert not same(tensor, expected[name])
            else:
                expected[name] = tensor
    for scales in rounded.rounding.kv:
        expected[f"{scales.name}.k_scale"] = torch.tensor([scales.k_decode_scale])
        expected[f"{scales.name}.v_scale"] = torch.tensor([scales.v_decode_scale])
    assert out.keys() == expected.keys()
    assert [name for name in expected if not same(out[name], expected[name])] == []
    # All of the vision side, and what reads no smoothed norm, is the source bit for bit.
    untouched = [name for name in source if "visual" in name or "conv1d" in name or "embed" in name]
    assert len(untouched) > 20
    assert all(same(out[name], source[name]) for name in untouched)


def test_members_of_a_group_share_their_global_scales(rounded, mixed):
    out = tensors_of(mixed)
    groups = rounded.plan(*MIXED)
    fused = [g for g in rounded.model_map.groups if groups[g.name] is Precision.NVFP4 and len(g.linears) > 1]
    assert {group.kind for group in fused} >= {"gdn.qkvz", "mlp.gate_up"}
    for group in fused:
        for part in ("weight_global_scale", "input_global_scale"):
            assert len({out[f"{linear.name}.{part}"].item() for linear in group.linears}) == 1


def test_cache_scales_are_on_full_attention_layers_only(rounded, mixed, tmp_path):
    names = sorted(name for name in tensors_of(mixed) if name.endswith((".k_scale", ".v_scale")))
    attention = "model.language_model.layers.3.self_attn"
    assert names == [f"{attention}.k_scale", f"{attention}.v_scale"]
    write(rounded, tmp_path / "out", *MIXED)
    assert not [name for name in tensors_of(tmp_path / "out") if name.endswith((".k_scale", ".v_scale"))]
    config = json.loads((tmp_path / "out" / "config.json").read_bytes())
    assert config["quantization_config"]["kv_cache_scheme"] is None


def test_shards_hold_the_same_tensors(rounded, mixed, tmp_path):
    write(rounded, tmp_path / "out", *MIXED, kv=True, max_shard_bytes=60_000)
    one, many = tensors_of(mixed), tensors_of(tmp_path / "out")
    assert one.keys() == many.keys()
    assert all(same(one[name], many[name]) for name in one)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    files = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors"))
    assert len(files) > 3
    assert sorted(set(index["weight_map"].values())) == files
    assert index["weight_map"].keys() == one.keys()
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in one.values())
    sizes = {f: sum(one[n].nbytes for n, g in index["weight_map"].items() if g == f) for f in files}
    assert all(size <= 60_000 or len(load_file(tmp_path / "out" / f)) == 1 for f, size in sizes.items())


def test_a_sharded_source_gives_the_same(rounded, mixed, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(rounded.source, source)
    (source / "model.safetensors").unlink()
    tensors = load_file(rounded.source / "model.safetensors")
    names = sorted(tensors)
    weight_map = {}
    for number, part in enumerate((names[::2], names[1::2])):
        file = f"model-0000{number + 1}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, source / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    groups = rounded.plan(*MIXED)
    with rounded.rounding.open_weights(rounded.run) as weights:
        write_checkpoint(
            source,
            tmp_path / "out",
            model_map=read_model_map(source),
            groups=groups,
            weights=weights,
            kv=rounded.rounding.kv,
            max_shard_bytes=10**9,
        )
    assert bytes_of(tmp_path / "out").keys() == bytes_of(mixed).keys()
    one, other = tensors_of(mixed), tensors_of(tmp_path / "out")
    assert one.keys() == other.keys()
    assert all(same(one[name], other[name]) for name in one)


def test_a_plan_that_quantizes_nothing_is_a_plain_copy(rounded, tmp_path):
    write(rounded, tmp_path / "out", "bf16")
    source, out = bytes_of(rounded.source), bytes_of(tmp_path / "out")
    assert out.keys() == source.keys()
    assert {name for name in out if out[name] != source[name]} <= {"model.safetensors"}
    tensors, copied = tensors_of(rounded.source), tensors_of(tmp_path / "out")
    assert tensors.keys() == copied.keys()
    assert all(same(tensors[name], copied[name]) for name in tensors)


def test_read_back_is_what_was_rounded(rounded, mixed):
    precisions = {n: p for n, p in precisions_of(rounded, *MIXED).items() if p is not Precision.BF16}
    with rounded.rounding.open_weights(rounded.run) as weights, StoredCheckpoint(mixed) as stored:
        simulated = rounded_linears(rounded.rounding, weights, rounded.plan(*MIXED))
        assert dict(stored.linears) == precisions
        assert simulated.keys() == precisions.keys()
        assert list(stored.kv) == rounded.rounding.kv
        for name, linear in simulated.items():
            again = SimulatedLinear.of(stored.weight(name), stored.input_encode_scale(name))
            assert again.precision is precisions[name]
            assert torch.equal(again.operand, linear.operand)
            assert torch.equal(again.output_scale, linear.output_scale)
        smoothing = rounded_smoothing(weights)
        for norm, weight in smoothing.norms.items():
            assert torch.equal(stored.tensor(f"{norm}.weight"), weight)


def stage(rounded, folder, *precisions, kv_cache="bf16"):
    assignment = Assignment(
        inputs={},
        budget={"bits_per_weight": 6.0},
        score="kl",
        predicted_loss=0.0,
        bits_per_weight=6.0,
        weight_bytes=1,
        kv_cache=kv_cache,
        groups=rounded.plan(*precisions),
    )
    return export_checkpoint(
        folder,
        ExportSection(),
        source=rounded.source,
        model_map=rounded.model_map,
        assignment=assignment,
        rounding=rounded.rounding,
        inputs={"model": "a" * 64},
    )


def test_record_tells_what_was_written(rounded):
    record = stage(rounded, rounded.run, *MIXED, kv_cache="fp8")
    groups = rounded.plan(*MIXED)
    assert record.contents == CheckpointRecord.scan(rounded.run / record.folder)
    assert record.format == "compressed-tensors"
    assert record.inputs == {"model": "a" * 64}
    assert record.weight_bytes == sum(g.weight_bytes(groups[g.name]) for g in rounded.model_map.groups)
    bits = sum(FORMATS[groups[g.name]].bits_per_weight * g.num_weights for g in rounded.model_map.groups)
    assert record.bits_per_weight == pytest.approx(bits / rounded.model_map.num_weights)
    assert 4.5 < record.bits_per_weight < 16
    again = stage(rounded, rounded.run, *MIXED, kv_cache="fp8")
    assert again == record
    assert stage(rounded, rounded.run, "bf16").format == "bf16"
    assert stage(rounded, rounded.run, "bf16").bits_per_weight == 16


def test_the_same_plan_gives_the_same_bytes_over_anything(rounded, mixed, tmp_path):
    out = tmp_path / "checkpoint"
    out.mkdir()
    (out / "stale.safetensors").write_bytes(b"x")
    write(rounded, out, *MIXED, kv=True)
    assert bytes_of(out) == bytes_of(mixed)


def test_a_kill_leaves_nothing_and_the_next_run_is_whole(rounded, mixed, tmp_path, monkeypatch):
    out = tmp_path / "checkpoint"
    made = CheckpointTensors.make
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:

        def slow(self, name):
            if name.startswith("model.language_model.layers.2"):
                os.write(writing, b"half-way")
                time.sleep(600)
            return made(self, name)

        CheckpointTensors.make = slow
        try:
            write(rounded, out, *MIXED, kv=True)
        finally:
            os._exit(1)
    assert os.read(reading, 8) == b"half-way"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reading)
    os.close(writing)
    assert not out.exists()
    assert len(list(tmp_path.iterdir())) == 1  # what the killed process was writing
    write(rounded, out, *MIXED, kv=True)
    assert bytes_of(out) == bytes_of(mixed)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_a_full_disk_leaves_what_was_there(rounded, tmp_path):
    out = tmp_path / "checkpoint"
    write(rounded, out, "fp8")
    before = bytes_of(out)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with pytest.raises(OutputError, match="checkpoint: expected a file that can be written whole"):
            write(rounded, out, "nvfp4")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert bytes_of(out) == before
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_groups_and_caches_must_be_those_of_the_model(rounded, tmp_path):
    groups = rounded.plan("fp8")
    arguments = {"model_map": rounded.model_map, "max_shard_bytes": 10**9}
    with rounded.rounding.open_weights(rounded.run) as weights:
        for wrong in ({**groups, "layers.9.mlp.down": Precision.FP8}, dict(list(groups.items())[1:])):
            with pytest.raises(
                ArtifactError, match=r"groups of the plan: expected exactly .*mend assignment"
            ):
                write_checkpoint(rounded.source, tmp_path / "a", groups=wrong, weights=weights, **arguments)
        kv = [rounded.rounding.kv[0].model_copy(update={"name": "model.language_model.layers.0.linear_attn"})]
        with pytest.raises(ArtifactError, match="cache scales"):
            write_checkpoint(
                rounded.source, tmp_path / "a", groups=groups, weights=weights, kv=kv, **arguments
            )
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("part", "value", "error"),
    [
        ("layers.0.mlp.up_proj:nvfp4:weight_global_scale", [3.0], ArtifactError),
        ("layers.0.mlp.down_proj:nvfp4:weight_global_scale", [float("inf")], WeightValueError),
        ("layers.0.mlp.down_proj:nvfp4:weight_scale", 0.0, WeightValueError),
        ("layers.0.mlp.down_proj:nvfp4:weight_packed", "narrow", ShapeError),
        ("layers.0.mlp.down_proj:nvfp4:weight_packed", None, ArtifactError),
    ],
)
def test_faults_in_rounded_weights_are_found(rounded, tmp_path, part, value, error):
    name = f"model.language_model.{part}"
    tensors = load_file(rounded.run / Rounding.TENSORS_NAME)
    original = tensors[name]
    if value is None:
        tensors = {key: t for key, t in tensors.items() if not key.startswith(name.rpartition(":")[0])}
    elif value == "narrow":
        tensors[name] = original[:, :-8].contiguous()
    elif value == 0.0:
        tensors[name] = torch.zeros(original.shape).to(original.dtype)
    else:
        tensors[name] = torch.tensor(value)
    write_tensors(tmp_path / Rounding.TENSORS_NAME, tensors)
    record = FileRecord.of(tmp_path / Rounding.TENSORS_NAME)
    rounding = rounded.rounding.model_copy(update={"tensors": record})
    with rounding.open_weights(tmp_path) as weights, pytest.raises(error):
        write_checkpoint(
            rounded.source,
            tmp_path / "out",
            model_map=rounded.model_map,
            groups=rounded.plan("nvfp4"),
            weights=weights,
            max_shard_bytes=10**9,
        )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("file_format", "expected"),
    [
        ("compressed-tensors", {"mtp.layers.0.mlp.gate_proj", "mtp.fc", r"re:(?:.*\.)?mtp\..*"}),
        ("modelopt", {"mtp*"}),
    ],
)
def test_drafting_heads_are_copied_and_ignored(rounded, tmp_path, file_format, expected):
    source = tmp_path / "source"
    shutil.copytree(rounded.source, source)
    tensors = load_file(source / "model.safetensors")
    heads = {
        "mtp.layers.0.mlp.gate_proj.weight": torch.randn(32, 64).bfloat16(),
        "mtp.fc.weight": torch.randn(64, 128).bfloat16(),
        "mtp.norm.weight": torch.randn(64).bfloat16(),
    }
    save_file(tensors | heads, source / "model.safetensors", metadata={"format": "pt"})
    with rounded.rounding.open_weights(rounded.run) as weights:
        write_checkpoint(
            source,
            tmp_path / "out",
            model_map=read_model_map(source),
            groups=rounded.plan("nvfp4"),
            weights=weights,
            file_format=file_format,
            max_shard_bytes=10**9,
        )
    out = tensors_of(tmp_path / "out")
    assert all(same(out[name], tensor) for name, tensor in heads.items())
    ignored = json.loads((tmp_path / "out" / "config.json").read_bytes())["quantization_config"]["ignore"]
    assert expected <= set(ignored)
    assert "mtp.norm" not in ignored


def test_an_unreadable_source_is_no_fault_of_the_output(rounded, tmp_path, monkeypatch):
    def failing(self, name):
        raise ModelError(name, expected="a tensor", given="a hole")

    monkeypatch.setattr(CheckpointReader, "read", failing)
    with pytest.raises(ModelError, match="a hole"):
        write(rounded, tmp_path / "out", "bf16")
    assert list(tmp_path.iterdir()) == []
