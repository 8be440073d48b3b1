import pytest
import torch

from ocrquant.artifacts import (
    FileRecord,
    KvStatistics,
    LinearStatistics,
    PositionStatistics,
    Statistics,
    tensor_name,
    write_tensors,
)
from ocrquant.errors import ArtifactError


def positions(amax, dead=()):
    return PositionStatistics(num_tokens=7, amax=amax, outlier_ratio=2.0, dead_channels=list(dead))


def linear(name="model.layers.0.mlp.down_proj", text=1.0, image=2.0):
    return LinearStatistics(name=name, in_features=4, text=positions(text, [1, 3]), image=positions(image))


@pytest.fixture
def saved(tmp_path):
    name = tensor_name(linear().name, "text", "channel_amax")
    write_tensors(tmp_path / Statistics.TENSORS_NAME, {name: torch.tensor([1.0, 0.0, 0.5, 0.0])})
    record = FileRecord.of(tmp_path / Statistics.TENSORS_NAME)
    kv = [KvStatistics(name="model.layers.3.self_attn", k_amax=3.0, v_amax=4.0, num_tokens=7)]
    statistics = Statistics(inputs={}, num_pages=2, tensors=record, linears=[linear()], kv=kv)
    statistics.save(tmp_path)
    return tmp_path


def test_round_trip_with_tensors(saved):
    statistics = Statistics.load(saved)
    tensors = statistics.load_tensors(saved)
    assert list(tensors) == ["model.layers.0.mlp.down_proj:text:channel_amax"]
    assert tensors["model.layers.0.mlp.down_proj:text:channel_amax"].tolist() == [1.0, 0.0, 0.5, 0.0]
    assert statistics.files() == {"statistics.safetensors": statistics.tensors}


def test_tensors_of_another_run_are_refused(saved):
    write_tensors(saved / "statistics.safetensors", {"x": torch.zeros(1)})
    with pytest.raises(ArtifactError, match=r"statistics\.safetensors: expected SHA-256"):
        Statistics.load(saved).load_tensors(saved)


@pytest.mark.parametrize(("text", "image", "amax"), [(1.0, 2.0, 2.0), (3.0, 2.0, 3.0)])
def test_amax_is_over_both_kinds_of_positions(text, image, amax):
    assert linear(text=text, image=image).amax == amax


def test_frame_has_a_row_for_each_kind_of_position(saved):
    frame = Statistics.load(saved).to_frame()
    assert frame["positions"].tolist() == ["text", "image"]
    assert frame["num_dead_channels"].tolist() == [2, 0]
    assert frame["amax"].tolist() == [1.0, 2.0]


def test_repeated_linear_is_refused(saved):
    statistics = Statistics.load(saved)
    with pytest.raises(ValueError, match="listed twice"):
        Statistics(**statistics.model_dump() | {"linears": [linear(), linear()]})
