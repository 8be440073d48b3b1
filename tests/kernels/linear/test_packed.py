import pytest
import torch

from ocrquant.errors import ShapeError
from ocrquant.formats import nvfp4
from ocrquant.formats.precision import Precision
from ocrquant.formats.weights import FP8Weight
from ocrquant.kernels.linear import pack, unpack
from ocrquant.kernels.linear.layout import (
    PANEL,
    pack_nvfp4,
    unpack_nvfp4,
)
from tests.kernels.linear.operands import make_weight

BF16, BYTE = torch.bfloat16, torch.uint8
PRECISIONS = list(Precision)


def bits(weight):
    if isinstance(weight, torch.Tensor):
        return [weight.contiguous().view(BYTE)]
    if isinstance(weight, FP8Weight):
        return [weight.codes.view(BYTE), weight.decode_scale]
    return [weight.packed, weight.block_scale.view(BYTE), weight.encode_scale]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("shape", [(16, 64), (1, 16), (17, 16), (40, 176), (1040, 80), (64, 48)])
def test_unpack_gives_the_weight_back_bit_for_bit(precision, shape):
    weight = make_weight(precision, *shape)
    (back,) = unpack(pack(weight))
    assert all(torch.equal(a, b) for a, b in zip(bits(back), bits(weight), strict=True))


@pytest.mark.parametrize("precision", [Precision.BF16, Precision.FP8])
@pytest.mark.parametrize("in_features", [1, 2, 3, 5, 7, 250])
def test_unpack_takes_any_width_without_blocks(precision, in_features):
    weight = make_weight(precision, 19, in_features)
    (back,) = unpack(pack(weight))
    assert all(torch.equal(a, b) for a, b in zip(bits(back), bits(weight), strict=True))


def test_unpack_keeps_every_code_nan_and_minus_zero():
    codes = torch.arange(256, dtype=BYTE).view(16, 16)
    weight = FP8Weight(codes=codes.view(torch.float8_e4m3fn), decode_scale=torch.rand(16, 1))
    packed = pack(weight)
    (back,) = unpack(packed)
    assert torch.equal(back.codes.view(BYTE), codes)
    assert torch.equal(back.decode_scale, weight.decode_scale)
    # 0x7F is in row 7, 0xFF in row 15.
    assert packed.channel_scale.isnan().nonzero().flatten().tolist() == [7, 15]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_merged_parts_come_back_with_their_own_scales(precision):
    rows = (24, 5, 40)
    parts = [make_weight(precision, n, 48, seed=n, scale=n) for n in rows]
    packed = pack(parts)
    assert packed.part_rows == rows
    assert packed.shape == (69, 48)
    for back, part in zip(unpack(packed), parts, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(bits(back), bits(part), strict=True))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("shape", [(1024, 512), (2000, 1040)])
def test_packed_size_is_within_two_percent_of_the_stored_size(precision, shape):
    weight = make_weight(precision, *shape)
    packed = pack(weight)
    assert weight.nbytes <= packed.nbytes <= 1.02 * weight.nbytes


def test_places_of_an_nvfp4_block():
    # Row 5 of the panel, block 1 of 5: four bytes from 20 on of each half.
    codes = torch.zeros(PANEL, 80, dtype=BYTE)
    codes[5, 16:32] = torch.arange(16, dtype=BYTE)
    scale = torch.zeros(PANEL, 5, dtype=BYTE)
    scale[5, 1], scale[5, 4] = 0x38, 0x39
    weight = nvfp4.NVFP4Weight(
        packed=nvfp4.pack(codes), block_scale=scale.view(torch.float8_e4m3fn), encode_scale=torch.ones(1)
    )
    panel = pack_nvfp4(weight.packed, weight.block_scale)[0]
    assert panel[128 + 20 : 128 + 24].tolist() == [0x20, 0x64, 0x31, 0x75]
    assert panel[128 + 64 + 20 : 128 + 64 + 24].tolist() == [0xA8, 0xEC, 0xB9, 0xFD]
    assert panel[512 + 20 + 1] == 0x38
    assert panel[576 + 128 + 20] == 0x39
    assert len(panel) == 576 + 128 + 64


@pytest.mark.parametrize("shape", [(16, 16), (17, 32), (40, 176), (1040, 80), (64, 48)])
def test_panels_of_nvfp4_come_back_bit_for_bit(shape):
    weight = make_weight(Precision.NVFP4, *shape)
    scale = weight.block_scale.view(BYTE)
    codes, block_scale = unpack_nvfp4(pack_nvfp4(weight.packed, weight.block_scale), *shape)
    assert torch.equal(codes, weight.packed)
    assert torch.equal(block_scale.view(BYTE), scale)


def test_places_of_fp8_and_bf16_columns():
    codes = torch.zeros(PANEL, 8, dtype=BYTE)
    codes[2, 4:8] = torch.tensor([1, 2, 3, 4], dtype=BYTE)
    weight = FP8Weight(codes=codes.view(torch.float8_e4m3fn), decode_scale=torch.ones(PANEL, 1))
    assert pack(weight).panels[0, 64 + 8 : 64 + 12].tolist() == [1, 3, 2, 4]
    plain = torch.zeros(PANEL, 8, dtype=BF16)
    plain[2, 6:8] = torch.tensor([1.0, 2.0])
    assert pack(plain).panels[0].view(BF16)[3 * 32 + 4 : 3 * 32 + 6].tolist() == [1.0, 2.0]


def test_other_float_dtypes_stay_as_they_are():
    weight = torch.randn(5, 7, dtype=torch.float64)
    packed = pack([weight, weight])
    assert packed.panels is None
    assert all(torch.equal(part, weight) for part in unpack(packed))


def test_refuses_parts_that_differ():
    with pytest.raises(ShapeError, match="weights to merge"):
        pack([make_weight(Precision.BF16, 16, 32), make_weight(Precision.FP8, 16, 32)])
    with pytest.raises(ShapeError, match=r"bf16 \[16, 32\], bf16 \[16, 48\]"):
        pack([make_weight(Precision.BF16, 16, 32), make_weight(Precision.BF16, 16, 48)])
    with pytest.raises(ShapeError, match="got none"):
        pack([])
    with pytest.raises(ShapeError, match="weight to pack"):
        pack(torch.zeros(3, 4, dtype=torch.int32))
