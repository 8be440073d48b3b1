import pytest
import torch

from ocrquant.errors import ShapeError
from ocrquant.formats import fp8, nvfp4
from ocrquant.formats.weights import FP8Weight
from ocrquant.simulate import QuantizedLinear, SimulatedLinear, simulated_output
from ocrquant.simulate.operands import fp8_operand, nvfp4_operand


def fp8_weight(weight: torch.Tensor) -> FP8Weight:
    decode_scale = fp8.weight_decode_scale(weight, "channel")
    return FP8Weight(codes=fp8.encode(weight, decode_scale), decode_scale=decode_scale)


def pair(kind: str, out: int = 48, width: int = 64):
    """A stored weight, and the linear simulated from it."""
    weight = torch.randn(out, width, generator=torch.Generator().manual_seed(1))
    if kind == "fp8":
        stored = fp8_weight(weight)
        return stored, SimulatedLinear.of(stored)
    stored = nvfp4.quantize(weight)
    return stored, SimulatedLinear.of(stored, nvfp4.global_encode_scale(torch.tensor(3.0)))


def reference(x: torch.Tensor, stored, linear: SimulatedLinear) -> torch.Tensor:
    """Decoded activations times decoded weight in float64."""
    if isinstance(stored, FP8Weight):
        scale = fp8.token_decode_scale(x.float())
        decoded = fp8.decode(fp8.encode(x, scale), scale, torch.float64)
        return decoded @ stored.dequantize(torch.float64).T
    decoded = nvfp4.quantize_dequantize_activation(x.float(), linear.input_encode_scale)
    return decoded.double() @ stored.dequantize(torch.float64).T


def activations(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(2)) * 1.5


def test_nvfp4_by_hand():
    # Weight: codes 0.5, -6 and zeros; block scale 448, global scale 448, so values are the codes.
    weight = torch.zeros(2, 16)
    weight[0, :2] = torch.tensor([0.5, -6.0])
    weight[1, 3] = 4.0
    stored = nvfp4.quantize(weight, torch.tensor([448.0]))
    assert stored.block_scale.float().tolist() == [[448.0], [288.0]]  # 448 * 4 / 6 = 298.67
    # Input global scale 448: calibrated amax 6. Block amax 3: block scale 448 * 3 / 6 = 224, step 0.5 * 0.5.
    linear = SimulatedLinear.of(stored, torch.tensor([448.0]))
    x = torch.zeros(1, 16)
    x[0, :4] = torch.tensor([3.0, 0.3, 1.1, -0.13])  # on the grid of 0.5 times E2M1: 3, 0.25, 1, -0.25
    # Row 1: 4 / (288 / 448) = 6.2 -> 6, and 6 * 288 / 448 = 3.857...
    expected = [0.5 * 3.0 - 6.0 * 0.25, -0.25 * 6 * 288 / 448]
    assert simulated_output(x, linear)[0].tolist() == pytest.approx(expected, rel=1e-6)


def test_nvfp4_saturates_beyond_the_calibrated_amax():
    stored = nvfp4.quantize(torch.eye(16))
    linear = SimulatedLinear.of(stored, nvfp4.global_encode_scale(torch.tensor(6.0)))
    x = torch.full((1, 16), 100.0)
    assert simulated_output(x, linear)[0].tolist() == pytest.approx([6.0] * 16, rel=1e-6)
    inside = torch.full((1, 16), 6.0)
    assert torch.equal(simulated_output(inside, linear), simulated_output(x, linear))


def test_fp8_by_hand():
    # Channel scales 1 and 2; the token's amax 448 gives scale 1, so 17 rounds to 16 (step 2, tie to even).
    weight = torch.tensor([[448.0, 1.0], [0.0, 896.0]])
    linear = SimulatedLinear.of(fp8_weight(weight))
    assert linear.output_scale.tolist() == [[1.0, 2.0]]
    x = torch.tensor([[448.0, 17.0]])
    assert simulated_output(x, linear).tolist() == [[448.0 * 448 + 16.0, 896.0 * 16]]


@pytest.mark.parametrize("kind", ["fp8", "nvfp4"])
@pytest.mark.parametrize("shape", [(1,), (3, 5), (16,), (2, 150)])
def test_float32_output_is_the_exact_sum(kind, shape):
    stored, linear = pair(kind)
    x = activations(*shape, 64)
    exact = reference(x, stored, linear)
    assert simulated_output(x, linear).shape == (*shape, 48)
    assert (simulated_output(x, linear) - exact).abs().max() < 2e-6 * exact.abs().max()
    # The quantization that this equality could miss is a thousand times larger.
    plain = x.double() @ stored.dequantize(torch.float64).T
    assert (plain - exact).abs().max() > 5e-3 * exact.abs().max()


@pytest.mark.parametrize("kind", ["fp8", "nvfp4"])
@pytest.mark.parametrize("rows", [4, 40])
def test_bf16_output_is_rounded_once(kind, rows):
    stored, linear = pair(kind)
    x = activations(rows, 64).bfloat16()
    once = reference(x, stored, linear).bfloat16()
    given = simulated_output(x, linear)
    assert given.dtype == torch.bfloat16
    # Float32 sums may fall on the other side of a bf16 midpoint once in tens of thousands.
    assert (given != once).float().mean() < 1e-3


@pytest.mark.parametrize("kind", ["fp8", "nvfp4"])
def test_small_and_large_batches_agree(kind):
    _, linear = pair(kind)
    x = activations(64, 64)
    few = torch.cat([simulated_output(x[i : i + 8], linear) for i in range(0, 64, 8)])
    assert torch.allclose(simulated_output(x, linear), few, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["fp8", "nvfp4"])
def test_pieces_join_to_the_whole(kind, monkeypatch):
    stored, linear = pair(kind)
    x = activations(2, 150, 64)
    monkeypatch.setattr("ocrquant.simulate.linear._CPU_PIECE_ELEMENTS", 64 * 70)
    exact = reference(x, stored, linear)
    output = simulated_output(x, linear)
    assert output.shape == (2, 150, 48)
    assert (output - exact).abs().max() < 2e-6 * exact.abs().max()


def test_operands_are_the_stored_codes():
    x = activations(7, 64)
    x[2] = 0
    x[3, :16] = 1e-9
    values, scales = fp8_operand(x)
    assert torch.equal(scales, fp8.token_decode_scale(x))
    assert torch.equal(values, fp8.encode(x, scales).float() + 0.0)
    encode_scale = nvfp4.global_encode_scale(torch.tensor(2.0))  # below the amax: some blocks saturate
    operand = nvfp4_operand(x, encode_scale)
    decoded = nvfp4.quantize_dequantize_activation(x, encode_scale)
    assert torch.allclose(operand / encode_scale, decoded, rtol=1e-6, atol=0)
    assert torch.equal(operand, operand.bfloat16().float())
    assert torch.equal(values, values.bfloat16().float())


def test_activations_are_quantized_from_float32():
    """A quantizer that computes in bf16 finds other codes for some of the same numbers."""
    _, linear = pair("nvfp4")
    blocks = activations(800, 16).bfloat16()
    encode_scale = linear.input_encode_scale.bfloat16()
    scales = (blocks.abs().amax(1, keepdim=True) / 6 * encode_scale).to(torch.float8_e4m3fn)
    one = torch.ones(1)
    codes = nvfp4.encode(blocks / (scales.bfloat16() / encode_scale), torch.ones_like(scales), one)
    different = nvfp4.decode(codes, scales, one) != nvfp4_operand(blocks, linear.input_encode_scale)
    assert 1e-3 < different.float().mean() < 0.2


@pytest.mark.parametrize("kind", ["fp8", "nvfp4"])
def test_bias_is_added_before_the_only_rounding(kind):
    stored, linear = pair(kind)
    bias = torch.randn(48, generator=torch.Generator().manual_seed(5)).bfloat16()
    x = activations(9, 64).bfloat16()
    once = (reference(x, stored, linear) + bias.double()).bfloat16()
    assert (simulated_output(x, linear, bias) != once).float().mean() < 1e-2
    module = QuantizedLinear(linear, bias)
    assert torch.equal(module(x), simulated_output(x, linear, bias))


@pytest.mark.parametrize("kind", ["fp8", "nvfp4"])
def test_layout_of_the_input_does_not_matter(kind):
    _, linear = pair(kind)
    x = activations(64, 12).T
    assert not x.is_contiguous()
    assert torch.equal(simulated_output(x, linear), simulated_output(x.contiguous(), linear))
    assert simulated_output(x[:0], linear).shape == (0, 48)


@pytest.mark.parametrize("kind", ["fp8", "nvfp4"])
def test_a_broken_token_shows_and_breaks_no_other(kind):
    _, linear = pair(kind)
    x = activations(20, 64)
    clean = simulated_output(x, linear)
    x[3, 5] = float("nan")
    broken = simulated_output(x, linear)
    assert broken[3].isnan().all()
    others = [row for row in range(20) if row != 3]
    assert torch.equal(broken[others], clean[others])


@pytest.mark.parametrize("kind", ["fp8", "nvfp4"])
def test_zeros_give_exactly_the_bias(kind):
    _, linear = pair(kind)
    bias = torch.arange(48.0)
    assert torch.equal(simulated_output(torch.zeros(2, 64), linear, bias), bias.expand(2, 48))


@pytest.mark.parametrize("kind", ["fp8", "nvfp4"])
def test_gradient_is_that_of_the_dequantized_linear(kind):
    stored, linear = pair(kind)
    x = activations(6, 64).requires_grad_()
    seed = activations(6, 48)
    output = simulated_output(x, linear, torch.ones(48))
    assert torch.equal(output.detach(), simulated_output(x.detach(), linear, torch.ones(48)))
    (output * seed).sum().backward()
    expected = seed @ stored.dequantize()
    assert torch.allclose(x.grad, expected, rtol=0, atol=1e-5 * expected.abs().max())
    low = activations(6, 64).bfloat16().requires_grad_()
    (simulated_output(low, linear) * seed.bfloat16()).sum().backward()
    assert low.grad.dtype == torch.bfloat16
    assert torch.allclose(low.grad.float(), expected, rtol=0, atol=2e-2 * expected.abs().max())


def test_wrong_inputs_are_refused():
    stored, linear = pair("nvfp4")
    with pytest.raises(ShapeError, match="expected width 64, got 32"):
        simulated_output(torch.zeros(2, 32), linear)
    with pytest.raises(ShapeError, match="got none"):
        SimulatedLinear.of(stored)
    with pytest.raises(ShapeError, match="got one"):
        SimulatedLinear.of(pair("fp8")[0], torch.ones(1))


def test_the_setting_of_products_is_given_back(monkeypatch):
    settings = torch.backends.mkldnn.matmul
    before = settings.fp32_precision
    _, linear = pair("fp8")
    seen = []

    def failing(*args):
        seen.append(settings.fp32_precision)
        raise RuntimeError

    monkeypatch.setattr("ocrquant.simulate.products.F.linear", failing)
    with pytest.raises(RuntimeError):
        simulated_output(activations(40, 64), linear)
    assert seen == ["bf16"]
    assert settings.fp32_precision == before


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", ["fp8", "nvfp4"])
def test_cuda_agrees_with_the_cpu(kind):
    stored, linear = pair(kind)
    x = activations(50, 64)
    on_gpu = linear.to(torch.device("cuda", 0))
    assert on_gpu.operand.dtype == torch.bfloat16
    exact = reference(x, stored, linear)
    assert (simulated_output(x.cuda(), on_gpu).cpu() - exact).abs().max() < 2e-6 * exact.abs().max()
