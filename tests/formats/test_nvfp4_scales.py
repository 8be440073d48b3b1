"""Both levels of NVFP4 scales and both conventions of the global one, against numbers worked out by hand."""

import pytest
import torch

from ocrquant.errors import ShapeError, WeightValueError
from ocrquant.formats import nvfp4

ONE = torch.ones(1)


SIGNIFICANDS = torch.arange(1, 127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()


def scales_of(encode_scale):
    """What a reader that divides and one that multiplies make of all E4M3 numbers."""
    return SIGNIFICANDS / encode_scale, SIGNIFICANDS * nvfp4.to_modelopt(encode_scale)


def test_exchangeable_scales_decode_alike_in_both_conventions():
    exponents = torch.rand(300, generator=torch.Generator().manual_seed(0)) * 200 - 100
    num_changed = 0
    for given in torch.exp2(exponents).split(1):
        found = nvfp4.exchangeable_scale(given)
        divided, multiplied = scales_of(found)
        assert torch.equal(divided, multiplied)
        assert torch.equal(nvfp4.from_modelopt(nvfp4.to_modelopt(found)), found)
        assert torch.equal(nvfp4.exchangeable_scale(found), found)
        assert 1 <= (given / found).item() <= 1 + 2.0**-11
        num_changed += int(not torch.equal(given, found))
    assert num_changed > 200  # or the search was never needed


def test_scales_that_are_exchangeable_stay():
    for power in (-100, -1, 0, 11, 100):
        scale = torch.tensor([2.0**power])
        assert torch.equal(nvfp4.exchangeable_scale(scale), scale)
    # 1 / 2688 needs 24 bits, and still both conventions agree; of 448 they do not.
    assert nvfp4.exchangeable_scale(torch.tensor([2688.0])).tolist() == [2688.0]
    divided, multiplied = scales_of(torch.tensor([448.0]))
    assert not torch.equal(divided, multiplied)
    assert nvfp4.exchangeable_scale(torch.tensor([448.0])).item() == pytest.approx(448, rel=2**-11)
    with pytest.raises(ShapeError):
        nvfp4.exchangeable_scale(torch.ones(2))


def test_the_longest_gap_is_bridged():
    """1 / G just behind the significand with the longest way to the next one that agrees, 3328 steps."""
    bits = torch.tensor([0x3F800000 + int(0.4140 * 2**23)], dtype=torch.int32)
    for step in range(-4000, 4000, 97):
        given = (bits + step).view(torch.float32).reciprocal()
        divided, multiplied = scales_of(nvfp4.exchangeable_scale(given))
        assert torch.equal(divided, multiplied)


@pytest.mark.parametrize(
    ("amax", "encode_scale"),
    [
        (2688.0, 1.0),
        (6.0, 448.0),
        (1.0, 2688.0),
        (0.0, 1.0),
        (1e-45, 1.0),
        (1e-38, 1.0),  # 2688 / amax would overflow
        (1e-33, 1.0),  # its inverse would leave the scales no room above the subnormals
        (2.0**-100, 2688.0 * 2.0**100),
    ],
)
def test_global_scale_by_hand(amax, encode_scale):
    scale = nvfp4.global_encode_scale(torch.tensor(amax))
    assert scale.dtype == torch.float32
    assert scale.tolist() == [encode_scale]
    assert nvfp4.global_decode_scale(torch.tensor(amax)).item() == pytest.approx(1 / encode_scale, rel=1e-7)


def test_global_scale_takes_any_dtype_and_refuses_what_it_cannot_use():
    assert nvfp4.global_encode_scale(torch.tensor([[6.0]], dtype=torch.bfloat16)).tolist() == [448.0]
    with pytest.raises(WeightValueError, match="1 NaN"):
        nvfp4.global_encode_scale(torch.tensor(torch.nan))
    with pytest.raises(WeightValueError, match="1 Inf"):
        nvfp4.global_decode_scale(torch.tensor(torch.inf))
    with pytest.raises(ShapeError, match=r"expected one value, got \[2\]"):
        nvfp4.global_encode_scale(torch.ones(2))


def test_fused_members_share_the_scale_of_the_largest():
    amaxes = [torch.tensor(3.0), torch.tensor([6.0]), torch.tensor([[5.0]], dtype=torch.bfloat16)]
    assert nvfp4.shared_global_encode_scale(*amaxes).tolist() == [448.0]
    assert nvfp4.shared_global_encode_scale(torch.zeros(1), torch.zeros(1)).tolist() == [1.0]
    # With it no member clips; with the scale of the smallest the largest would.
    large = torch.full((1, 16), 6.0)
    assert nvfp4.clipped_blocks(large, nvfp4.shared_global_encode_scale(*amaxes)).item() == 0
    assert nvfp4.clipped_blocks(large, nvfp4.global_encode_scale(amaxes[0])).item() == 1


def test_conventions_by_hand():
    assert nvfp4.to_modelopt(torch.tensor([448.0])).tolist() == torch.tensor(1 / 448).item()
    assert nvfp4.to_modelopt(torch.tensor([448.0])).shape == ()
    assert nvfp4.from_modelopt(torch.tensor(0.25)).tolist() == [4.0]
    assert nvfp4.from_modelopt(torch.tensor(0.25)).shape == (1,)


def test_conventions_round_trip_within_one_unit_in_the_last_place():
    # Every float32 mantissa: a reciprocal behaves alike in every binade.
    scales = (torch.arange(2**23, dtype=torch.int32) + 0x3F800000).view(torch.float32)
    there = scales.double().reciprocal().float()
    some = torch.randint(0, 2**23, (50,))
    assert torch.equal(
        torch.stack([nvfp4.to_modelopt(scales[i : i + 1]) for i in some.tolist()]), there[some]
    )
    units = (there.reciprocal().view(torch.int32) - scales.view(torch.int32)).abs()
    assert units.max().item() == 1


def test_block_scale_by_hand():
    x = torch.zeros(2, 48)
    x[0, 3], x[0, 20], x[0, 47] = -6.0, 12.0, 6.375  # 1; 2; 1.0625, a tie that goes to 1
    x[1, 0], x[1, 16], x[1, 40] = 1e9, 3 * 2.0**-9, 1e-20  # saturates; 2**-10, a tie to zero; far below
    scale = nvfp4.block_decode_scale(x, ONE)
    assert scale.dtype == torch.float8_e4m3fn
    assert scale.view(torch.uint8).tolist() == [[0x38, 0x40, 0x38], [0x7E, 0x01, 0x01]]
    # The global scale multiplies: 256 lifts 2**-10 to 0.25 = 0x28.
    assert nvfp4.block_decode_scale(x, 256 * ONE).view(torch.uint8)[1].tolist() == [0x7E, 0x28, 0x01]


@pytest.mark.usefixtures("conversion_without_saturation")
def test_saturation_does_not_rest_on_the_conversion():
    x = torch.full((1, 16), 1e9)
    assert nvfp4.block_decode_scale(x, ONE).view(torch.uint8).tolist() == [[0x7E]]
    assert nvfp4.quantize_dequantize_activation(x, ONE)[0, 0].item() == 2688.0


def test_block_scale_of_a_nan_is_nan():
    x = torch.ones(1, 32)
    x[0, 20] = torch.nan
    scale = nvfp4.block_decode_scale(x, ONE).float()
    assert scale.isnan().tolist() == [[False, True]]


def test_block_scale_of_higher_dimensions_and_nothing():
    x = torch.randn(2, 3, 64)
    assert nvfp4.block_decode_scale(x, ONE).shape == (2, 3, 4)
    rows = nvfp4.block_decode_scale(x.view(6, 64), ONE)
    assert torch.equal(nvfp4.block_decode_scale(x, ONE).view(torch.uint8).view(6, 4), rows.view(torch.uint8))
    assert nvfp4.block_decode_scale(torch.empty(0, 32), ONE).shape == (0, 2)


@pytest.mark.parametrize("amax", [1.0, 3.7, 6.0, 0.0123, 1e-20, 3e38])
def test_clipped_blocks_counts_only_what_exceeds_the_calibrated_amax(amax):
    amax = torch.tensor(amax, dtype=torch.bfloat16).float()
    scale = nvfp4.global_encode_scale(amax)
    x = torch.zeros(5, 32)
    x[:, 7] = amax
    assert nvfp4.clipped_blocks(x, scale).item() == 0
    x[1, 30], x[4, 0], x[4, 15] = -amax * 1.01, amax * 1.2, torch.inf
    assert nvfp4.clipped_blocks(x, scale).item() == 2
    assert nvfp4.clipped_blocks(x.bfloat16(), scale).item() == 2
    assert nvfp4.clipped_blocks(torch.empty(0, 32), scale).item() == 0
