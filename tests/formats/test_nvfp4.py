"""NVFP4 elements and packing against codes and bytes worked out by hand.

A code is s e e m: 0 to 7 stand for 0, 0.5, 1, 1.5, 2, 3, 4, 6, and 8 more for the negative ones.
"""

import pytest
import torch

from ocrquant.errors import ShapeError, WeightValueError
from ocrquant.formats import nvfp4
from ocrquant.formats.reference import decode_nvfp4_block, encode_nvfp4_block

ONE = torch.ones(1)
UNIT_SCALE = torch.ones(1, dtype=torch.float8_e4m3fn)  # of a single block


def block(*values):
    """One block of 16: the values, then zeros."""
    return torch.tensor([*values, *[0.0] * (16 - len(values))])


def unit_codes(*values):
    return nvfp4.encode(block(*values), UNIT_SCALE, ONE)[: len(values)].tolist()


def bits(scale):
    return scale.view(torch.uint8).tolist()


def random_weight(rows, width, dtype=torch.float32, seed=0):
    """Blocks of very different sizes, some of them all zero."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, width // 16, 16, generator=generator)
    x *= 2.0 ** torch.randint(-14, 3, (rows, width // 16, 1), generator=generator)
    x[:, ::5] = 0.0
    return x.flatten(1).to(dtype)


def test_grid_points():
    assert unit_codes(0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert unit_codes(-0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0) == [8, 9, 10, 11, 12, 13, 14, 15]


def test_all_seven_ties_and_their_bytes():
    ties = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]
    assert unit_codes(*ties) == [0, 2, 2, 4, 4, 6, 6]  # 0, 1, 1, 2, 2, 4, 4
    assert unit_codes(*[-tie for tie in ties]) == [8, 10, 10, 12, 12, 14, 14]
    x = torch.tensor([*ties, 6.0, *[-tie for tie in ties], -6.0])
    packed = nvfp4.pack(nvfp4.encode(x, UNIT_SCALE, ONE))
    assert packed.tolist() == [0x20, 0x42, 0x64, 0x76, 0xA8, 0xCA, 0xEC, 0xFE]


def test_beside_the_ties():
    assert unit_codes(0.2500001, 0.7499999, 1.2500002, 1.7499999, 2.5000002, 3.4999998, 5.0000005) == [
        *(1, 1, 3, 3, 5, 5, 7)
    ]


def test_signed_zero_nan_infinity_and_saturation():
    assert unit_codes(-0.0, 0.0, -0.25, -0.1) == [8, 0, 8, 8]
    assert unit_codes(6.1, 7.0, 8.0, 9.9, 16.0, 31.0, 1e3, 1e7, 1e38, torch.inf) == [7] * 10
    assert unit_codes(-6.1, -8.0, -16.0, -100.0, -torch.inf) == [15] * 5
    assert unit_codes(torch.nan, -torch.nan) == [7, 7]


def test_decoded_values_and_the_sign_of_zero():
    codes = torch.arange(16, dtype=torch.uint8)
    values = nvfp4.decode(codes, UNIT_SCALE, ONE)
    assert values.tolist() == [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]
    assert torch.signbit(values).tolist() == [False] * 8 + [True] * 8
    # decode multiplies by scale / G: 1.5 * 2**-2 here
    assert nvfp4.decode(codes, 1.5 * UNIT_SCALE.float(), 4 * ONE)[:4].tolist() == [0, 0.1875, 0.375, 0.5625]
    assert nvfp4.decode(codes, UNIT_SCALE, ONE, torch.bfloat16).dtype == torch.bfloat16


def test_packing_order_by_hand():
    codes = torch.tensor([[2, 15, 0, 8], [7, 1, 3, 4]], dtype=torch.uint8)
    packed = nvfp4.pack(codes)  # {1, -6} is 0xF2, as in NVIDIA's cuda_fp4.h
    assert packed.dtype == torch.uint8
    assert packed.tolist() == [[0xF2, 0x80], [0x17, 0x43]]
    assert torch.equal(nvfp4.unpack(packed), codes)
    every = torch.arange(256, dtype=torch.uint8).view(4, 64)
    assert torch.equal(nvfp4.pack(nvfp4.unpack(every)), every)
    assert torch.equal(nvfp4.pack(codes.T.contiguous().T), packed)
    with pytest.raises(ShapeError, match="an even width, got 3"):
        nvfp4.pack(codes[:, :3])


def test_elements_are_rounded_against_the_rounded_block_scale():
    # G = 1: 6.6 / 6 = 1.1, stored as 1.125 (0x39). 2.8 / 1.125 = 2.49 -> 2, but 2.8 / 1.1 = 2.55 -> 3.
    x = block(6.6, 2.8, -2.8)
    scale = nvfp4.block_decode_scale(x, ONE)
    assert bits(scale) == [0x39]
    assert nvfp4.encode(x, scale, ONE)[:3].tolist() == [7, 4, 12]
    assert nvfp4.quantize_dequantize(x, ONE)[:3].tolist() == [6.75, 2.25, -2.25]


def test_whole_weight_by_hand():
    weight = torch.zeros(2, 32)
    weight[0, :3] = torch.tensor([2688.0, -1344.0, 448.0])  # block amax 2688: scale 448 = 0x7E
    weight[0, 16:19] = torch.tensor([3.0, -1.5, 0.25])  # scale 0.5 = 0x30
    weight[1, 5] = -0.0
    weight[1, 30:] = torch.tensor([-12.0, 5.0])  # scale 2 = 0x40
    stored = nvfp4.quantize(weight)
    assert stored.encode_scale.tolist() == [1.0]
    assert bits(stored.block_scale) == [[0x7E, 0x30], [0x01, 0x40]]  # the zero block has 2**-9
    expected = torch.zeros(2, 16, dtype=torch.uint8)
    expected[0, 0] = 0xD7  # 6 and -3
    expected[0, 1] = 0x02  # 1
    expected[0, 8] = 0xD7  # 3 / 0.5 = 6, -1.5 / 0.5 = -3
    expected[0, 9] = 0x01  # 0.25 / 0.5 = 0.5
    expected[1, 2] = 0x80  # -0 in the odd column
    expected[1, 15] = 0x4F  # -12 / 2 = -6; 5 / 2 = 2.5 -> 2
    assert torch.equal(stored.packed, expected)
    back = weight.clone()
    back[1, 31] = 4.0
    assert torch.equal(stored.dequantize(), back)
    assert torch.equal(nvfp4.quantize_dequantize(weight, stored.encode_scale), back)


def test_an_activation_beyond_the_calibrated_amax_saturates():
    scale = nvfp4.global_encode_scale(torch.tensor(6.0))  # 448
    x = block(12.0, -9.0, 5.0, 0.6)
    # The block scale would be 896, saturates at 448; elements are then divided by 1.
    assert nvfp4.quantize_dequantize_activation(x, scale)[:4].tolist() == [6.0, -6.0, 4.0, 0.5]
    assert nvfp4.quantize_dequantize_activation(block(torch.inf), scale)[0].item() == 6.0
    assert nvfp4.clipped_blocks(x, scale).item() == 1


def test_nan_activation_breaks_its_block_only():
    x = torch.cat([block(6.0, torch.nan), block(6.0)])
    result = nvfp4.quantize_dequantize_activation(x, ONE)
    assert result[:16].isnan().all()
    assert result[16:].tolist() == block(6.0).tolist()


def test_tiny_block_beside_a_large_one():
    # G = 1. Unrounded scale 0.75 * 2**-10, below the smallest E4M3 number 2**-9 and rounding to zero.
    x = block(4.5 * 2.0**-10, -(2.0**-10), 0.0)
    assert bits(nvfp4.block_decode_scale(x, ONE)) == [0x01]
    # Stored with 2**-9: 2.25 -> 2, -0.5.
    assert nvfp4.quantize_dequantize(x, ONE)[:3].tolist() == [2.0**-8, -(2.0**-10), 0.0]
    # A kernel that finds the scale itself gets zero, and so zero elements.
    assert not nvfp4.quantize_dequantize_activation(x, ONE).any()


def test_provided_block_scales_are_used():
    x = block(6.0, 3.5)
    scale = torch.tensor([1.25])
    # 6 / 1.25 = 4.8 -> 4; 3.5 / 1.25 = 2.8 -> 3
    assert nvfp4.encode(x, scale, ONE)[:2].tolist() == [6, 5]
    assert nvfp4.quantize_dequantize(x, ONE, scale)[:2].tolist() == [5.0, 3.75]
    stored = nvfp4.quantize(x[None], ONE, scale[None].to(torch.float8_e4m3fn))
    assert bits(stored.block_scale) == [[0x3A]]
    assert stored.dequantize()[0, :2].tolist() == [5.0, 3.75]
    # A zero scale stands for a zero block, a NaN scale breaks the block.
    zero, broken = torch.zeros(1), torch.tensor([torch.nan])
    assert not nvfp4.encode(x, zero, ONE).any()
    assert not nvfp4.encode(block(torch.inf), zero, ONE).any()
    assert not nvfp4.quantize_dequantize(x, ONE, zero).any()
    assert nvfp4.quantize_dequantize(x, ONE, broken).isnan().all()
    assert nvfp4.encode(x, broken, ONE).tolist() == [7] * 16


def test_every_element_equals_the_definition():
    x = random_weight(40, 64)
    scale = nvfp4.global_encode_scale(x.abs().max())
    stored = nvfp4.block_decode_scale(x, scale)
    codes = nvfp4.encode(x, stored, scale).view(-1, 16).tolist()
    values = nvfp4.quantize_dequantize(x, scale).view(-1, 16).tolist()
    stored_values = stored.float().flatten().tolist()
    for index, values_of_block in enumerate(x.view(-1, 16).tolist()):
        expected_scale, expected_codes = encode_nvfp4_block(values_of_block, scale.item())
        assert stored_values[index] == expected_scale
        assert codes[index] == expected_codes
        assert values[index] == decode_nvfp4_block(expected_codes, expected_scale, scale.item())


def test_the_comparison_sees_an_unrounded_block_scale():
    x = random_weight(40, 64)
    scale = nvfp4.global_encode_scale(x.abs().max())
    unrounded = scale * x.view(40, 4, 16).abs().amax(-1) / 6
    right = nvfp4.encode(x, nvfp4.block_decode_scale(x, scale), scale)
    assert (nvfp4.encode(x, unrounded, scale) != right).float().mean() > 0.01


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(6, 96), (2, 3, 16), (48,), (0, 32), (300, 1024)])
def test_simulation_equals_encode_then_decode(shape, dtype):
    x = random_weight(max(1, torch.Size(shape).numel() // shape[-1]), shape[-1], dtype)
    x = x.view(shape) if torch.Size(shape).numel() else x[:0]
    scale = nvfp4.global_encode_scale(torch.tensor(20.0))
    stored = nvfp4.block_decode_scale(x, scale)
    codes = nvfp4.encode(x, stored, scale)
    assert codes.shape == x.shape
    assert torch.equal(nvfp4.unpack(nvfp4.pack(codes)), codes)
    for result in (nvfp4.quantize_dequantize(x, scale), nvfp4.quantize_dequantize(x, scale, stored)):
        assert result.dtype == dtype
        assert torch.equal(result, nvfp4.decode(codes, stored, scale, dtype))
    exact = nvfp4.quantize_dequantize(x, scale, dtype=torch.float32)
    assert torch.equal(exact, nvfp4.decode(codes, stored, scale))


def test_non_contiguous_input_and_no_change_to_it():
    x, scale = random_weight(64, 96), 100 * ONE
    for view in (x.T, x[::3, 16:64], x[:, ::2], x[:, :16], x[:16].T, x[:1].expand(4, 96)):
        before, solid = view.clone(), view.contiguous()
        stored = nvfp4.block_decode_scale(view, scale)
        assert bits(stored) == bits(nvfp4.block_decode_scale(solid, scale))
        assert torch.equal(nvfp4.encode(view, stored, scale), nvfp4.encode(solid, stored, scale))
        for simulate in (nvfp4.quantize_dequantize, nvfp4.quantize_dequantize_activation):
            assert torch.equal(simulate(view, scale), simulate(solid, scale))
            assert simulate(view, scale).is_contiguous()
        assert torch.equal(view, before)


@pytest.mark.parametrize("width", [8, 15, 17, 24])
def test_ragged_tail_is_refused(width):
    x = torch.ones(3, width)
    message = (
        rf"\[3, {width}\]: expected a width that is a multiple of 16, got {width}; keep this layer in fp8"
    )
    for call in (
        lambda: nvfp4.block_decode_scale(x, ONE),
        lambda: nvfp4.encode(x, torch.ones(3, 1), ONE),
        lambda: nvfp4.quantize_dequantize(x, ONE),
        lambda: nvfp4.quantize_dequantize_activation(x, ONE),
        lambda: nvfp4.clipped_blocks(x, ONE),
        lambda: nvfp4.quantize(x),
    ):
        with pytest.raises(ShapeError, match=message):
            call()


def test_block_scales_of_the_wrong_shape_are_refused():
    x = torch.ones(4, 32)
    for shape in ((4, 1), (2, 4), (8,)):
        with pytest.raises(ShapeError, match=r"expected \[4, 2\], got"):
            nvfp4.encode(x, torch.ones(shape), ONE)
        with pytest.raises(ShapeError, match=r"expected \[4, 2\], got"):
            nvfp4.quantize_dequantize(x, ONE, torch.ones(shape))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_broken_weight_is_refused(value):
    weight = torch.ones(2, 16)
    weight[1, 15] = value
    with pytest.raises(WeightValueError, match="among 32"):
        nvfp4.quantize(weight)


@pytest.mark.parametrize("magnitude", [0.0, 1e-45, 1e-38, 1e-33, 1e-20, 1.0, 3e38])
def test_dead_and_tiny_channels_store_usable_scales_and_exact_zeros(magnitude):
    weight = torch.zeros(4, 32)
    weight[0] = torch.linspace(-1, 1, 32) * magnitude
    weight[2, 3] = magnitude / 1e7
    stored = nvfp4.quantize(weight)
    assert 0 < stored.encode_scale.item() < torch.inf
    assert 0 < stored.encode_scale.reciprocal().item() < torch.inf
    scales = stored.block_scale.float()
    assert scales.isfinite().all()
    assert (scales >= 2.0**-9).all()
    back = stored.dequantize()
    assert back.isfinite().all()
    assert not back[weight == 0].any()
    if magnitude > 1e-30:
        assert torch.allclose(back[0], weight[0], atol=magnitude / 5)


def test_vllm_kernel_order_agrees_but_for_near_ties():
    # cvt_warp_fp16_to_fp4: SF = G * (amax * (1/6)), elements times 1 / (SF * (1/G)), reciprocals exact here.
    x = random_weight(512, 256, torch.bfloat16).float()
    scale = nvfp4.global_encode_scale(x.abs().max())
    blocks = x.view(-1, 16)
    unrounded = scale * (blocks.abs().amax(-1, keepdim=True) * torch.tensor(6.0).reciprocal())
    stored = unrounded.clamp(max=448).to(torch.float8_e4m3fn).float()
    multiplier = torch.where(stored == 0, 0.0, (stored * scale.reciprocal()).reciprocal())
    kernel = nvfp4.encode(blocks * multiplier, torch.ones_like(stored), ONE).view(x.shape)
    ours = nvfp4.encode(x, stored.view(512, 16), scale)
    assert (kernel != ours).float().mean() <= 1e-4
    assert ((kernel & 7).int() - (ours & 7).int()).abs().max() <= 1
