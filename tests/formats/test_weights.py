import pytest
import torch

from ocrquant.errors import ShapeError
from ocrquant.formats import FORMATS, Precision, fp8, nvfp4
from ocrquant.formats.weights import FP8Weight, scale_columns, weight_from_tensors, weight_tensors

FORMATS_STORED = [Precision.FP8, Precision.NVFP4]


def original():
    return torch.randn(24, 64, generator=torch.Generator().manual_seed(0))


def quantized(precision):
    if precision is Precision.NVFP4:
        return nvfp4.quantize(original())
    scale = fp8.weight_decode_scale(original(), "channel")
    return FP8Weight(codes=fp8.encode(original(), scale), decode_scale=scale)


@pytest.mark.parametrize("precision", FORMATS_STORED)
def test_answers_the_same_questions(precision):
    weight = quantized(precision)
    assert weight.precision is precision
    assert weight.shape == (24, 64)
    assert weight.nbytes == FORMATS[precision].weight_bytes(24, 64)
    assert weight.dequantize(torch.bfloat16).dtype == torch.bfloat16
    assert (weight.dequantize() - original()).abs().max() < 0.5


def test_fp8_by_hand():
    scale = torch.tensor([[2.0], [0.5]])
    codes = torch.tensor([[1.0, -3.0], [448.0, 0.0]]).to(torch.float8_e4m3fn)
    weight = FP8Weight(codes=codes, decode_scale=scale)
    assert weight.dequantize().tolist() == [[2.0, -6.0], [224.0, 0.0]]
    assert weight.nbytes == 4 + 8


@pytest.mark.parametrize(
    ("precision", "names"),
    [
        (Precision.FP8, ["weight", "weight_scale"]),
        (Precision.NVFP4, ["weight_packed", "weight_scale", "weight_global_scale"]),
    ],
)
def test_parts_have_their_checkpoint_names_and_come_back(precision, names):
    weight = quantized(precision)
    parts = weight_tensors(weight)
    assert list(parts) == names
    again = weight_from_tensors(precision, parts | {"bias": torch.zeros(24)})
    assert torch.equal(again.dequantize(), weight.dequantize())


def test_fp8_scales_in_bf16_become_float32():
    parts = weight_tensors(quantized(Precision.FP8))
    parts["weight_scale"] = parts["weight_scale"].bfloat16()
    assert weight_from_tensors(Precision.FP8, parts).decode_scale.dtype == torch.float32


@pytest.mark.parametrize("precision", FORMATS_STORED)
def test_missing_or_misshapen_parts_are_named(precision):
    parts = weight_tensors(quantized(precision))
    with pytest.raises(ShapeError, match="got no weight_scale"):
        weight_from_tensors(precision, {n: t for n, t in parts.items() if n != "weight_scale"})
    with pytest.raises(ShapeError, match=rf"weight_scale of a {precision} weight"):
        weight_from_tensors(precision, parts | {"weight_scale": parts["weight_scale"][:-1]})
    first = next(iter(parts))
    with pytest.raises(ShapeError):
        weight_from_tensors(precision, parts | {first: parts[first].flatten()})
    with pytest.raises(ShapeError):
        weight_from_tensors(precision, parts | {first: parts[first].float()})


def test_columns_are_multiplied_in_float32_and_rounded_once():
    weight = torch.tensor([[1.0, 3.0], [0.0, -2.0]]).bfloat16()
    found = scale_columns(weight, torch.tensor([1.00390625, 0.5]))
    # 1.00390625 lies between two bf16 numbers and rounds to the even one.
    assert found.dtype == torch.bfloat16
    assert found.tolist() == [[1.0, 1.5], [0.0, -1.0]]
    assert scale_columns(weight.float(), torch.tensor([1.00390625, 0.5])).tolist()[0] == [1.00390625, 1.5]


def test_vector_of_another_width_is_refused():
    with pytest.raises(ShapeError, match=r"expected \[64\], got \[24\]"):
        scale_columns(original(), torch.ones(24))
