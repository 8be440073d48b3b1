import pytest
import torch
from pydantic import ValidationError

from ocrquant.artifacts import (
    FileRecord,
    GroupInput,
    GroupRounding,
    KvScales,
    NormSmoothing,
    Rounding,
    RoundingStep,
    norm_tensor_name,
    weight_tensor_name,
    write_tensors,
)
from ocrquant.errors import ArtifactError
from ocrquant.formats import Precision, nvfp4
from ocrquant.formats.weights import weight_tensors

UP, A, NORM = "layers.0.mlp.up_proj", "layers.0.linear_attn.in_proj_a", "layers.0.norm"


def group(name="layers.0.mlp.gate_up", precision=Precision.NVFP4, accepted=True):
    steps = [RoundingStep(step="gptq", accepted=accepted, error_before=0.2, error_after=0.1)]
    return GroupRounding(group=name, precision=precision, linears=[UP], steps=steps, error=0.1)


def made(record, **changes):
    values = {
        "inputs": {},
        "num_held_back_pages": 2,
        "tensors": record,
        "groups": [group()],
        "group_inputs": [GroupInput(group="layers.0.mlp.gate_up", amax=3.0, encode_scale=896.0)],
        "norms": [NormSmoothing(norm=NORM, linears=[UP, A], accepted=True, exponent=0.5)],
        "kv": [KvScales(name="layers.3.self_attn", k_decode_scale=0.5, v_decode_scale=0.25)],
    }
    return Rounding(**values | changes)


@pytest.fixture
def weight():
    return nvfp4.quantize(torch.randn(4, 32, generator=torch.Generator().manual_seed(0)))


@pytest.fixture
def saved(tmp_path, weight):
    tensors = {
        weight_tensor_name(UP, Precision.NVFP4, name): tensor
        for name, tensor in weight_tensors(weight).items()
    }
    tensors[norm_tensor_name(NORM, "smoothing")] = torch.full((32,), 2.0)
    tensors[norm_tensor_name(NORM, "weight")] = torch.full((32,), 0.5, dtype=torch.bfloat16)
    write_tensors(tmp_path / Rounding.TENSORS_NAME, tensors)
    made(FileRecord.of(tmp_path / Rounding.TENSORS_NAME)).save(tmp_path)
    return tmp_path


def test_round_trip(saved):
    found = Rounding.load(saved)
    assert found == made(FileRecord.of(saved / "rounding.safetensors"))
    assert found.files() == {"rounding.safetensors": found.tensors}


def test_weights_come_back(saved, weight):
    with Rounding.load(saved).open_weights(saved) as weights:
        found = weights.weight(UP, Precision.NVFP4)
    assert torch.equal(found.packed, weight.packed)
    assert torch.equal(found.dequantize(), weight.dequantize())
    assert found.encode_scale.shape == (1,)


def test_smoothing_reaches_all_readers_of_the_norm(saved):
    with Rounding.load(saved).open_weights(saved) as weights:
        assert weights.smoothing(UP).tolist() == [2.0] * 32
        assert weights.smoothing(A).tolist() == [2.0] * 32
        assert weights.smoothing("layers.0.mlp.down_proj") is None
        assert weights.norm_weight(NORM).dtype == torch.bfloat16
        assert weights.norm_weight("layers.1.norm") is None
        assert weights.smoothed_norms() == [NORM]
        assert weights.smoothed_linears() == sorted([UP, A])


def test_rejected_smoothing_is_not_applied(saved):
    norms = [NormSmoothing(norm=NORM, linears=[UP, A], accepted=False, exponent=0.5)]
    rounding = made(FileRecord.of(saved / "rounding.safetensors"), norms=norms)
    with rounding.open_weights(saved) as weights:
        assert weights.smoothing(UP) is None
        assert weights.norm_weight(NORM) is None
        assert weights.smoothed_norms() == weights.smoothed_linears() == []


def test_input_scale_is_one_float32(saved):
    with Rounding.load(saved).open_weights(saved) as weights:
        found = weights.input_encode_scale("layers.0.mlp.gate_up")
        assert found.dtype == torch.float32
        assert found.tolist() == [896.0]
        with pytest.raises(ArtifactError, match=r"expected group layers\.9, got none"):
            weights.input_encode_scale("layers.9")


@pytest.mark.parametrize(("linear", "precision"), [(UP, Precision.FP8), (A, Precision.NVFP4)])
def test_missing_weight_is_named(saved, linear, precision):
    message = rf"expected linear {linear} in {precision}, got none"
    with Rounding.load(saved).open_weights(saved) as weights, pytest.raises(ArtifactError, match=message):
        weights.weight(linear, precision)


def test_tensors_of_another_run_are_refused(saved):
    rounding = Rounding.load(saved)
    write_tensors(saved / "rounding.safetensors", {"x": torch.zeros(1)})
    with pytest.raises(ArtifactError, match=r"rounding\.safetensors: expected SHA-256"):
        rounding.open_weights(saved)


def test_groups_are_found_by_name_and_format(saved):
    found = Rounding.load(saved)
    assert found.group("layers.0.mlp.gate_up", Precision.NVFP4) == group()
    with pytest.raises(ArtifactError, match=r"rounding\.json: expected group layers\.0\.mlp\.gate_up in fp8"):
        found.group("layers.0.mlp.gate_up", Precision.FP8)


def test_accepted_steps():
    assert group().accepted("gptq")
    assert not group(accepted=False).accepted("gptq")
    assert not group().accepted("smoothing")


def test_frame_has_a_row_for_each_step(saved):
    frame = Rounding.load(saved).to_frame()
    assert frame["group"].tolist() == ["layers.0.mlp.gate_up"]
    assert frame["precision"].tolist() == ["nvfp4"]
    assert frame["step"].tolist() == ["gptq"]
    assert frame["error_after"].tolist() == [0.1]


def test_repeated_group_is_refused(saved):
    record = FileRecord.of(saved / "rounding.safetensors")
    with pytest.raises(ValidationError, match="a group is listed twice in one format"):
        made(record, groups=[group(), group()])


def test_group_without_input_is_refused(saved):
    record = FileRecord.of(saved / "rounding.safetensors")
    with pytest.raises(ValidationError, match="groups and group_inputs name different groups"):
        made(record, groups=[group(), group("layers.1.mlp.gate_up")])
