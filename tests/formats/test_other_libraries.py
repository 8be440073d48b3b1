"""Bit equality with the libraries whose checkpoints these formats must match, in both scale conventions.

Random tensors with fixed seeds. Where a library differs by design, the difference itself is checked.
"""

import pytest
import torch
from compressed_tensors.compressors.naive_quantized.base import FloatQuantizationCompressor
from compressed_tensors.compressors.nvfp4.base import NVFP4PackedCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import fake_quantize
from compressed_tensors.quantization.utils import (
    calculate_qparams,
    compute_dynamic_scales_and_zp,
    generate_gparam,
)
from modelopt.torch.quantization.qtensor import FP8QTensor, NVFP4QTensor
from modelopt.torch.quantization.tensor_quant import fp8_eager

from ocrquant.formats import fp8, nvfp4

pytestmark = pytest.mark.strict

NVFP4_ARGS = {
    "num_bits": 4,
    "type": "float",
    "strategy": "tensor_group",
    "group_size": 16,
    "symmetric": True,
    "scale_dtype": torch.float8_e4m3fn,
}
FP8_ARGS = {"num_bits": 8, "type": "float", "symmetric": True}
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


def random(rows, width, dtype=torch.float32, seed=0):
    """Rows of different sizes, with heavy tails, so that every binade of both grids is met."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, width, generator=generator) ** 3
    return (x * 2.0 ** torch.randint(-4, 3, (rows, 1), generator=generator)).to(dtype)


def same_bits(ours, theirs):
    return torch.equal(ours.contiguous().view(torch.uint8), theirs.contiguous().view(torch.uint8))


def scheme(arguments):
    return QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**arguments))


@pytest.mark.parametrize("amax", [0.0, 1e-45, 1e-38, 3e-36, 1e-20, 0.013, 1.0, 77.7, 3e38])
def test_global_scale_of_compressed_tensors(amax):
    amax = torch.tensor([amax])
    assert torch.equal(nvfp4.global_encode_scale(amax), generate_gparam(-amax, amax))


def test_block_scale_of_compressed_tensors():
    x = random(128, 512)
    scale = nvfp4.global_encode_scale(x.abs().max())
    blocks = x.view(128, 32, 16)
    theirs, _ = calculate_qparams(blocks.amin(-1), blocks.amax(-1), QuantizationArgs(**NVFP4_ARGS), scale)
    assert same_bits(nvfp4.block_decode_scale(x, scale).float(), theirs)


@DTYPES
def test_weight_of_compressed_tensors(dtype):
    weight = random(128, 512, dtype)
    stored = nvfp4.quantize(weight)
    state = {
        "weight": weight,
        "weight_scale": stored.block_scale.float(),
        "weight_global_scale": stored.encode_scale,
    }
    theirs = NVFP4PackedCompressor.compress(state, scheme(NVFP4_ARGS))
    assert torch.equal(stored.packed, theirs["weight_packed"])
    assert same_bits(stored.block_scale, theirs["weight_scale"])
    back = NVFP4PackedCompressor.decompress(theirs, scheme(NVFP4_ARGS))["weight"]
    assert torch.equal(stored.dequantize(back.dtype), back)


def test_activation_of_compressed_tensors():
    x = random(64, 512, seed=1)
    x[3] *= 1e-9  # scales that round to zero
    x[4, 5] = 1e4  # beyond what was calibrated
    arguments = QuantizationArgs(**NVFP4_ARGS, dynamic="local")
    scale = nvfp4.global_encode_scale(torch.tensor(100.0))
    block_scale, zero = compute_dynamic_scales_and_zp(x, arguments, torch.nn.Module(), scale)
    theirs = fake_quantize(x, block_scale, zero, arguments, scale)
    assert torch.equal(nvfp4.quantize_dequantize_activation(x, scale), theirs)
    assert not theirs[3].any()


def test_tiny_blocks_keep_more_than_in_compressed_tensors():
    x = torch.zeros(1, 32)
    x[0, 0], x[0, 16:] = 2688.0, torch.linspace(0, 3 * 2.0**-10, 16)
    blocks = x.view(1, 2, 16)
    theirs, _ = calculate_qparams(
        blocks.amin(-1), blocks.amax(-1), QuantizationArgs(**NVFP4_ARGS), torch.ones(1)
    )
    assert theirs[0, 1].item() == 0.125
    assert nvfp4.block_decode_scale(x, torch.ones(1)).float()[0, 1].item() == 2.0**-9
    flushed = fake_quantize(
        x, theirs, torch.zeros_like(theirs), QuantizationArgs(**NVFP4_ARGS), torch.ones(1)
    )
    ours = nvfp4.quantize_dequantize(x, torch.ones(1))
    assert not flushed[0, 16:].any()
    assert (ours - x).square().sum() < (flushed - x).square().sum()


@DTYPES
@pytest.mark.parametrize("per", ["tensor", "channel"])
def test_fp8_weight_of_compressed_tensors(per, dtype):
    weight = random(96, 200, dtype)
    scale = fp8.weight_decode_scale(weight, per=per)
    state = {"weight": weight, "weight_scale": scale}
    theirs = FloatQuantizationCompressor.compress(state, scheme({**FP8_ARGS, "strategy": per}))
    codes = fp8.encode(weight, scale)
    assert same_bits(codes, theirs["weight"])
    back = FloatQuantizationCompressor.decompress(theirs, scheme({**FP8_ARGS, "strategy": per}))["weight"]
    assert torch.equal(fp8.decode(codes, scale, back.dtype), back)


def test_fp8_scale_and_token_activation_of_compressed_tensors():
    x = random(64, 200, seed=2).view(2, 32, 200)
    arguments = QuantizationArgs(**FP8_ARGS, strategy="token", dynamic=True)
    scale, zero = compute_dynamic_scales_and_zp(x, arguments, torch.nn.Module())
    assert torch.equal(fp8.token_decode_scale(x), scale)
    ours = fp8.quantize_dequantize(x, fp8.token_decode_scale(x))
    assert torch.equal(ours, fake_quantize(x, scale, zero, arguments))


def test_weight_of_modelopt():
    weight = random(128, 512, seed=3)
    theirs, block_scale, global_scale = NVFP4QTensor.quantize(weight.clone(), 16)
    amax = weight.abs().max()
    assert torch.equal(nvfp4.global_decode_scale(amax).view(()), global_scale)
    encode_scale = nvfp4.global_encode_scale(amax)
    units = nvfp4.to_modelopt(encode_scale).view(torch.int32) - global_scale.view(torch.int32)
    assert units.abs().item() <= 1
    stored = nvfp4.quantize(weight, encode_scale)
    assert same_bits(stored.block_scale, block_scale)
    assert torch.equal(stored.packed, theirs._quantized_data)
    back = theirs.dequantize(
        torch.float32, scale=block_scale, double_scale=global_scale, block_sizes={-1: 16}
    )
    assert torch.allclose(stored.dequantize(), back, rtol=3e-7, atol=0.0)


def test_weight_of_modelopt_in_bfloat16_differs_at_exact_ties_only():
    # Coarse inputs meet ties exactly; which way they fall then hangs on the order of the float32 operations.
    num_different = 0
    for seed in (1, 3):
        weight = random(512, 1024, torch.bfloat16, seed)
        theirs, block_scale, _ = NVFP4QTensor.quantize(weight.clone(), 16)
        stored = nvfp4.quantize(weight)
        different = stored.block_scale.float() != block_scale.float()
        exact = 448 * weight.double().view(512, 64, 16).abs().amax(-1) / weight.double().abs().max()
        middle = (stored.block_scale.double() + block_scale.double()) / 2
        assert torch.allclose(exact[different], middle[different], rtol=1e-9)
        num_different += int(different.sum())
        assert different.float().mean() < 1e-3

        codes = nvfp4.encode(weight, block_scale, stored.encode_scale)
        their_codes = nvfp4.unpack(theirs._quantized_data)
        different = codes != their_codes
        unit = block_scale.double().repeat_interleave(16, -1) * weight.double().abs().max() / 2688
        exact = (weight.double() / unit).abs()
        one = torch.ones(512, 64)
        values = [nvfp4.decode(c, one, torch.ones(1)).double().abs() for c in (codes, their_codes)]
        middle = (values[0] + values[1]) / 2
        assert torch.allclose(exact[different], middle[different], rtol=1e-9)
        num_different += int(different.sum())
        assert different.float().mean() < 1e-3
    assert num_different  # or the comparison above has seen nothing


def test_modelopt_checkpoint_reads_the_same_through_the_converter():
    weight = random(64, 256, seed=4)
    theirs, block_scale, global_scale = NVFP4QTensor.quantize(weight.clone(), 16)
    encode_scale = nvfp4.from_modelopt(global_scale)
    ours = nvfp4.decode(nvfp4.unpack(theirs._quantized_data), block_scale, encode_scale)
    back = theirs.dequantize(
        torch.float32, scale=block_scale, double_scale=global_scale, block_sizes={-1: 16}
    )
    assert torch.allclose(ours, back, rtol=3e-7, atol=0.0)
    # The other convention taken by mistake is off by the square of the scale.
    mistaken = nvfp4.decode(nvfp4.unpack(theirs._quantized_data), block_scale, global_scale.view(1))
    assert not torch.allclose(mistaken, back, rtol=0.5, atol=0.0)


def test_tiny_and_zero_blocks_of_modelopt():
    x = torch.zeros(1, 48)
    x[0, 0], x[0, 16] = 2688.0, 1e-6
    theirs, block_scale, _ = NVFP4QTensor.quantize(x.clone(), 16)
    stored = nvfp4.quantize(x)
    assert block_scale.float().tolist() == [[448.0, 2.0**-9, 1.0]]
    assert stored.block_scale.float().tolist() == [[448.0, 2.0**-9, 2.0**-9]]
    assert torch.equal(stored.packed, theirs._quantized_data)


@DTYPES
@pytest.mark.parametrize(("per", "axis"), [("tensor", None), ("channel", 0)])
def test_fp8_weight_of_modelopt(per, axis, dtype):
    weight = random(96, 200, dtype, seed=5)
    scale = fp8.weight_decode_scale(weight, per=per)
    theirs, _ = FP8QTensor.quantize(weight.float(), scales=scale)
    assert same_bits(fp8.encode(weight, scale), theirs._quantized_data)
    _, their_scale = FP8QTensor.quantize(weight.float(), axis=axis)
    assert torch.equal(scale.flatten(), their_scale.flatten())


def test_fp8_simulation_of_modelopt():
    # It multiplies by 448 / amax where storing divides by amax / 448: the same but for near ties.
    x = random(256, 512, seed=6)
    amax = x.abs().max()
    theirs = fp8_eager(x, amax)
    ours = fp8.quantize_dequantize(x, fp8.static_decode_scale(amax))
    different = ~torch.isclose(ours, theirs, rtol=1e-6, atol=0.0)
    assert different.float().mean() < 1e-4
