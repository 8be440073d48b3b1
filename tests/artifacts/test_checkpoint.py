from ocrquant.artifacts import CheckpointRecord
from ocrquant.artifacts.digests import sha256_bytes


def test_scan_and_round_trip(tmp_path):
    folder = tmp_path / "checkpoint"
    (folder / "sub").mkdir(parents=True)
    (folder / "b.safetensors").write_bytes(b"abc")
    (folder / "sub" / "a.json").write_bytes(b"{}")
    contents = CheckpointRecord.scan(folder)
    assert list(contents) == ["b.safetensors", "sub/a.json"]
    assert contents["b.safetensors"].sha256 == sha256_bytes(b"abc")
    record = CheckpointRecord(
        inputs={},
        folder="checkpoint",
        format="compressed-tensors",
        bits_per_weight=5,
        weight_bytes=3,
        contents=contents,
    )
    record.save(tmp_path)
    assert CheckpointRecord.load(tmp_path) == record
    assert record.total_bytes == 5
    assert set(record.files()) == {"checkpoint/b.safetensors", "checkpoint/sub/a.json"}
    assert all((tmp_path / name).is_file() for name in record.files())
