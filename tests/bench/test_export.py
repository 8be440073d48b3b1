"""An export takes the memory of its largest tensor, whatever the size of the model."""

import pytest

from ocrquant.bench.export import (
    Settings,
    export_made,
    make_model_folder,
    make_rounding,
    peak_of_process,
)
from ocrquant.checkpoint import StoredCheckpoint
from ocrquant.formats import Precision
from tests.bench.holding import export_and_hold
from tests.bench.running import is_estimate, result_of

TINY = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "vocab_size": 512,
}
MIB = 1 << 20


def made(root, **sizes):
    """The largest tensor and the whole source in bytes."""
    model_map = make_model_folder(root / "source", Settings(**{**TINY, **sizes}))
    make_rounding(root / "run", model_map)
    sizes = [tensor.num_bytes for tensor in model_map.tensors.values()]
    return max(sizes), sum(sizes)


@pytest.mark.parametrize("file_format", ["compressed-tensors", "modelopt"])
def test_what_is_exported_is_a_checkpoint(tmp_path, file_format):
    made(tmp_path)
    export_made(tmp_path, file_format)
    with StoredCheckpoint(tmp_path / "out") as stored:
        assert stored.format.name == file_format
        assert set(stored.linears.values()) == {Precision.FP8, Precision.NVFP4}
        assert len(stored.kv) == 1


@pytest.mark.slow
def test_memory_does_not_grow_with_the_model(tmp_path):
    """VmHWM of a process that exports: 4 layers, and 60; then with the fault planted."""
    wide = {"hidden_size": 512, "intermediate_size": 2048}
    small = made(tmp_path / "small", **wide, num_hidden_layers=4)
    large = made(tmp_path / "large", **wide, num_hidden_layers=60)
    assert small[0] == large[0] == 2 * MIB
    assert large[1] - small[1] > 350 * MIB
    peaks = {
        name: peak_of_process(function, tmp_path / size, "compressed-tensors")
        for name, function, size in (
            ("small", export_made, "small"),
            ("large", export_made, "large"),
            ("held", export_and_hold, "large"),
        )
    }
    if peaks["small"] is None:
        pytest.skip("the system does not tell the peak of a process")
    assert peaks["large"] - peaks["small"] < 60 * MIB
    assert peaks["held"] - peaks["small"] > 300 * MIB


def test_time_and_memory_are_measured_against_a_copy(capsys):
    sizes = [f"{name}={value}" for name, value in TINY.items()]
    data = result_of(capsys, "export", *sizes, "format=modelopt")
    found = data["results"]
    assert all(is_estimate(found[arm]) for arm in ("copy_seconds", "export_seconds", "export_over_copy"))
    assert found["written_bytes"] < found["source_bytes"] + 100_000
    assert [goal["at_most"] for goal in data["goals"]] == [4.0, 2.0]
