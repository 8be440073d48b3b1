"""An exported folder in the other format, without the run: other names, reciprocals and configuration."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from ocrquant.checkpoint import FILE_FORMATS, CheckpointReader, StoredCheckpoint
from ocrquant.cli import app
from ocrquant.errors import ModelError, OutputError, RecipeError, TargetError
from ocrquant.export import Target, convert_checkpoint, write_checkpoint

MIXED = ("nvfp4", "fp8", "bf16")
OTHER = {"compressed-tensors": "modelopt", "modelopt": "compressed-tensors"}


def write(rounded, out, file_format, *precisions, max_shard_bytes=10**9):
    with rounded.rounding.open_weights(rounded.run) as weights:
        write_checkpoint(
            rounded.source,
            out,
            model_map=rounded.model_map,
            groups=rounded.plan(*precisions),
            weights=weights,
            kv=rounded.rounding.kv,
            file_format=file_format,
            max_shard_bytes=max_shard_bytes,
        )
    return out


def bytes_of(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("max_shard_bytes", [10**9, 60_000])
@pytest.mark.parametrize("kind", [MIXED, ("fp8",), ("nvfp4",), ("bf16",)])
@pytest.mark.parametrize("name", FILE_FORMATS)
def test_it_is_what_the_run_would_have_written(rounded, tmp_path, name, kind, max_shard_bytes):
    """To the last byte, so nothing is lost on the way, and the way back is open."""
    exported = write(rounded, tmp_path / "one", name, *kind, max_shard_bytes=max_shard_bytes)
    before = bytes_of(exported)
    written = convert_checkpoint(exported, tmp_path / "two", max_shard_bytes=max_shard_bytes)
    assert written.name == OTHER[name]
    direct = write(rounded, tmp_path / "direct", OTHER[name], *kind, max_shard_bytes=max_shard_bytes)
    assert bytes_of(tmp_path / "two") == bytes_of(direct)
    convert_checkpoint(tmp_path / "two", tmp_path / "three", max_shard_bytes=max_shard_bytes)
    assert bytes_of(tmp_path / "three") == before == bytes_of(exported)


def test_only_names_reciprocals_and_configuration_differ(rounded, tmp_path):
    """Tensor by tensor, without any code of this package that knows the formats."""
    exported = write(rounded, tmp_path / "one", "compressed-tensors", *MIXED)
    convert_checkpoint(exported, tmp_path / "two", target=Target.parse("tensorrt-llm"))
    one, two = (load_file(folder / "model.safetensors") for folder in (exported, tmp_path / "two"))
    renamed = {
        "weight_packed": "weight",
        "weight_global_scale": "weight_scale_2",
        "input_global_scale": "input_scale",
        "k_scale": "k_proj.k_scale",
        "v_scale": "v_proj.v_scale",
    }
    inverted = {"weight_global_scale", "input_global_scale"}
    seen = set()
    for name, tensor in one.items():
        module, _, part = name.rpartition(".")
        other = two.pop(f"{module}.{renamed.get(part, part)}")
        assert other.dtype == tensor.dtype
        expected = tensor.double().reciprocal().float() if part in inverted else tensor
        assert torch.equal(bits(other), bits(expected))
        seen.add(part)
    assert two == {}
    assert seen >= renamed.keys() | {"weight", "weight_scale"}
    files = bytes_of(exported).keys() ^ bytes_of(tmp_path / "two").keys()
    assert files == {"hf_quant_config.json"}


def bits(tensor):
    return tensor.contiguous().flatten().view(torch.uint8)


def test_a_folder_of_another_program(rounded, tmp_path):
    """FP8 scales in bf16 and a configuration in another style, as llm-compressor writes them."""
    folder = write(rounded, tmp_path / "one", "compressed-tensors", "fp8")
    tensors = load_file(folder / "model.safetensors")
    tensors = {n: t.bfloat16() if n.endswith("weight_scale") else t for n, t in tensors.items()}
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config, indent=4, sort_keys=True))
    convert_checkpoint(folder, tmp_path / "two", file_format="modelopt")
    with StoredCheckpoint(folder) as one, StoredCheckpoint(tmp_path / "two") as two:
        assert dict(one.linears) == dict(two.linears)
        for linear in one.linears:
            assert torch.equal(one.weight(linear).dequantize(), two.weight(linear).dequantize())


def test_the_command(rounded, tmp_path):
    folder = write(rounded, tmp_path / "one", "compressed-tensors", *MIXED)
    arguments = ["export-as", str(folder), "--out", str(tmp_path / "two"), "--target"]
    result = CliRunner().invoke(app, [*arguments, "tensorrt-llm"])
    assert (result.exit_code, result.stdout) == (0, "modelopt\n")
    with StoredCheckpoint(tmp_path / "two") as stored:
        assert stored.format.name == "modelopt"
    assert CliRunner().invoke(app, [*arguments, "sglang"]).exit_code == TargetError.exit_code


def test_what_the_target_cannot_serve_is_refused_before_anything_is_written(rounded, tmp_path):
    folder = write(rounded, tmp_path / "one", "compressed-tensors", *MIXED)
    for server in ("sglang", "vllm==0.29.0"):
        with pytest.raises(TargetError, match="FP8"):
            convert_checkpoint(folder, tmp_path / "two", target=Target.parse(server), file_format="modelopt")
    assert not (tmp_path / "two").exists()
    convert_checkpoint(folder, tmp_path / "two", target=Target.parse("vllm==0.30.0"), file_format="modelopt")
    assert (tmp_path / "two" / "hf_quant_config.json").is_file()


def test_wrong_folders_are_refused(rounded, tmp_path):
    with pytest.raises(ModelError, match="expected a quantized checkpoint, got none"):
        convert_checkpoint(rounded.source, tmp_path / "two")
    folder = write(rounded, tmp_path / "one", "modelopt", *MIXED)
    with pytest.raises(RecipeError, match="--format"):
        convert_checkpoint(folder, tmp_path / "two", file_format="gguf")
    with pytest.raises(OutputError, match="another folder than the source"):
        convert_checkpoint(folder, folder)
    torn = tmp_path / "torn"
    shutil.copytree(folder, torn)
    with CheckpointReader(folder) as reader:
        tensors = {name: reader.read(name) for name in reader.specs}
    part = "model.language_model.layers.0.linear_attn.in_proj_z"
    tensors = {n: t for n, t in tensors.items() if not n.startswith(part)} | {
        f"{part}.weight": torch.zeros(32, 32, dtype=torch.bfloat16)
    }
    save_file(tensors, torn / "model.safetensors")
    with pytest.raises(ModelError):
        convert_checkpoint(torn, tmp_path / "two")
    assert not (tmp_path / "two").exists()


def test_a_folder_of_somebody_else_is_not_replaced(rounded, tmp_path):
    exported = write(rounded, tmp_path / "one", "compressed-tensors", *MIXED)
    mine = tmp_path / "mine"
    mine.mkdir()
    convert_checkpoint(exported, mine)  # empty
    convert_checkpoint(exported, mine)  # what was written before
    (mine / "config.json").unlink()
    before = bytes_of(mine)
    with pytest.raises(OutputError, match="other files"):
        convert_checkpoint(exported, mine)
    assert bytes_of(mine) == before
