import json
import weakref

import pytest
import torch
from safetensors.torch import load_file, save_file

from ocrquant.checkpoint import (
    CheckpointReader,
    TensorSpec,
    copy_other_files,
    dtype_name,
    plan_shards,
    write_shards,
)
from ocrquant.errors import ModelError, ShapeError
from ocrquant.formats import nvfp4
from ocrquant.formats.weights import weight_tensors

MIXED = {
    "b.weight": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
    "a.weight_scale": torch.tensor([1.5]),
    "a.weight": torch.arange(5).to(torch.float8_e4m3fn),
    "c.scalar": torch.tensor(7, dtype=torch.int64),
    "d.empty": torch.zeros(0, 4),
    "e.flag": torch.tensor([True, False]),
}


def specs_of(tensors):
    return [TensorSpec(name, dtype_name(t.dtype), tuple(t.shape)) for name, t in tensors.items()]


def write(folder, tensors, max_shard_bytes=10**9):
    shards = plan_shards(specs_of(tensors), max_shard_bytes)
    write_shards(folder, shards, tensors.__getitem__)
    return shards


def test_bytes_of_a_hand_made_nvfp4_weight(tmp_path):
    grid = torch.tensor([0.0, 0.5, 1, 1.5, 2, 3, 4, 6])
    weight = torch.stack([torch.cat([grid, -grid]), torch.zeros(16)])
    tensors = weight_tensors(nvfp4.quantize(weight))
    write(tmp_path, {f"l.{name}": tensor for name, tensor in tensors.items()})
    raw = (tmp_path / "model.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    assert length % 8 == 0

    def data(name):
        begin, end = header[name]["data_offsets"]
        return raw[8 + length + begin : 8 + length + end].hex()

    assert header["__metadata__"] == {"format": "pt"}
    # Even column in the low nibble; minus zero keeps its sign; 448 is 0x7e, 2**-9 is 0x01, 448.0 is 43e00000.
    assert header["l.weight_packed"] == {"dtype": "U8", "shape": [2, 8], "data_offsets": [4, 20]}
    assert data("l.weight_packed") == "1032547698badcfe" + "00" * 8
    assert header["l.weight_scale"] == {"dtype": "F8_E4M3", "shape": [2, 1], "data_offsets": [20, 22]}
    assert data("l.weight_scale") == "7e01"
    assert header["l.weight_global_scale"] == {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    assert data("l.weight_global_scale") == "0000e043"


def test_other_programs_read_what_is_written(tmp_path):
    write(tmp_path, MIXED)
    loaded = load_file(tmp_path / "model.safetensors")
    assert loaded.keys() == MIXED.keys()
    for name, tensor in MIXED.items():
        assert loaded[name].dtype == tensor.dtype
        assert loaded[name].shape == tensor.shape
        assert loaded[name].float().tolist() == tensor.float().tolist()


def test_what_other_programs_write_is_read(tmp_path):
    save_file(MIXED, tmp_path / "model.safetensors")
    with CheckpointReader(tmp_path) as reader:
        assert list(reader.specs) == sorted(MIXED)
        for spec in specs_of(MIXED):
            assert reader.specs[spec.name] == spec
            assert torch.equal(reader.read(spec.name).float(), MIXED[spec.name].float())


def test_shards_are_filled_in_order_and_indexed_exactly(tmp_path):
    tensors = {f"t{number}": torch.full((10,), float(number)) for number in range(5)}
    tensors["big"] = torch.zeros(100)
    shards = write(tmp_path, tensors, max_shard_bytes=90)
    assert [[spec.name for spec in shard.specs] for shard in shards] == [
        ["t0", "t1"],
        ["t2", "t3"],
        ["t4"],
        ["big"],
    ]
    names = [f"model-{n:05d}-of-00004.safetensors" for n in range(1, 5)]
    assert sorted(path.name for path in tmp_path.iterdir()) == [*names, "model.safetensors.index.json"]
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": sum(t.nbytes for t in tensors.values())}
    for name in names:
        assert load_file(tmp_path / name).keys() == {t for t, f in index["weight_map"].items() if f == name}
    with CheckpointReader(tmp_path) as reader:
        assert reader.specs.keys() == tensors.keys()
        assert all(torch.equal(reader.read(name), tensor) for name, tensor in tensors.items())


def test_one_tensor_is_held_at_a_time(tmp_path):
    alive, most = weakref.WeakSet(), 0

    def produce(name):
        nonlocal most
        tensor = torch.zeros(1000)
        alive.add(tensor)
        most = max(most, len(alive))
        return tensor

    specs = [TensorSpec(f"t{number}", "F32", (1000,)) for number in range(6)]
    write_shards(tmp_path, plan_shards(specs, 10**9), produce)
    assert most <= 2  # the one before is still referred to by the loop


def test_a_tensor_other_than_planned_is_refused(tmp_path):
    shards = plan_shards([TensorSpec("a", "F32", (2,))], 100)
    for wrong in (torch.zeros(3), torch.zeros(2, dtype=torch.bfloat16)):
        with pytest.raises(ShapeError, match=r"tensor a to be written: expected F32 \[2\]"):
            write_shards(tmp_path, shards, lambda name, wrong=wrong: wrong)


@pytest.mark.parametrize("fault", ["missing", "cut", "extra", "absent", "index", "nothing"])
def test_damaged_folders_are_refused(tmp_path, fault):
    write(tmp_path, {"a": torch.zeros(30), "b": torch.zeros(30)}, max_shard_bytes=120)
    first, index = tmp_path / "model-00001-of-00002.safetensors", tmp_path / "model.safetensors.index.json"
    if fault == "missing":
        first.unlink()
    elif fault == "cut":
        first.write_bytes(first.read_bytes()[:-1])
    elif fault == "extra":
        save_file({"a": torch.zeros(30), "c": torch.zeros(1)}, first)
    elif fault == "absent":
        save_file({"c": torch.zeros(30)}, first)
    elif fault == "index":
        index.write_text('{"weight_map": ["a"]}')
    else:
        index.unlink()
    with pytest.raises(ModelError):
        CheckpointReader(tmp_path)


def test_a_missing_tensor_is_named(tmp_path):
    write(tmp_path, MIXED)
    with (
        CheckpointReader(tmp_path) as reader,
        pytest.raises(ModelError, match="expected a tensor x, got none"),
    ):
        reader.read("x")


def test_other_files_are_copied_byte_for_byte(tmp_path):
    source, out = tmp_path / "source", tmp_path / "out"
    (source / "sub").mkdir(parents=True)
    (source / ".cache").mkdir()
    kept = {"tokenizer.json": b"\x00\xff\r\n", "sub/a.jinja": b"", "merges.txt": b"a b\n", "model.py": b"#"}
    dropped = [
        "config.json",
        "model.safetensors",
        "model.safetensors.index.json",
        "pytorch_model.bin",
        "pytorch_model.bin.index.json",
        ".cache/x",
        ".gitattributes",
    ]
    for name, data in kept.items():
        (source / name).write_bytes(data)
    for name in dropped:
        (source / name).write_bytes(b"x")
    (source / "link.txt").symlink_to(source / "merges.txt")
    out.mkdir()
    copy_other_files(source, out)
    found = {p.relative_to(out).as_posix(): p.read_bytes() for p in out.rglob("*") if p.is_file()}
    assert found == kept | {"link.txt": b"a b\n"}
    assert not (out / "link.txt").is_symlink()
