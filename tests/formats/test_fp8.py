"""FP8 E4M3 against bytes worked out by hand.

A byte is seeeemmm with value (1 + m/8) * 2**(e-7), or m * 2**-9 where e is 0.
"""

import pytest
import torch

from ocrquant.errors import ShapeError, WeightValueError
from ocrquant.formats import fp8
from ocrquant.formats.reference import E4M3_GRID, nearest_code

ONE = torch.ones(1)


def codes(values, scale=ONE, dtype=torch.float32):
    return fp8.encode(torch.tensor(values, dtype=dtype), scale).view(torch.uint8).tolist()


@pytest.mark.parametrize(
    ("value", "byte"),
    [
        (0.0, 0x00),
        (-0.0, 0x80),
        (1.0, 0x38),  # 0 0111 000
        (-2.0, 0xC0),  # 1 1000 000
        (448.0, 0x7E),  # 0 1111 110: 1.75 * 256
        (2.0**-6, 0x08),  # smallest normal
        (2.0**-9, 0x01),  # smallest subnormal
        (7 * 2.0**-9, 0x07),  # largest subnormal
    ],
)
def test_exact_values(value, byte):
    assert codes([value]) == [byte]
    decoded = fp8.decode(torch.tensor([byte], dtype=torch.uint8).view(torch.float8_e4m3fn), ONE)
    assert decoded.item() == value
    assert torch.signbit(decoded).item() == (byte >= 0x80)


@pytest.mark.parametrize(
    ("value", "byte"),
    [
        (1.0625, 0x38),  # between 1 (0x38) and 1.125 (0x39): even is below
        (1.1875, 0x3A),  # between 1.125 (0x39) and 1.25 (0x3A): even is above
        (15.5, 0x58),  # between 15 (0x57) and 16 (0x58): over a power of two
        (432.0, 0x7E),  # between 416 (0x7D) and 448 (0x7E)
        (2.0**-10, 0x00),  # between 0 and the smallest subnormal
        (3 * 2.0**-10, 0x02),  # between the first two subnormals
        (15 * 2.0**-10, 0x08),  # between the largest subnormal (0x07) and the smallest normal (0x08)
        (-1.1875, 0xBA),
        (-(2.0**-10), 0x80),  # to minus zero
    ],
)
def test_ties_go_to_the_even_code(value, byte):
    assert codes([value]) == [byte]


@pytest.mark.parametrize(
    ("value", "byte"),
    [(449.0, 0x7E), (464.0, 0x7E), (465.0, 0x7E), (1e30, 0x7E), (torch.inf, 0x7E), (-torch.inf, 0xFE)],
)
def test_saturation(value, byte):
    assert codes([value]) == [byte]


@pytest.mark.usefixtures("conversion_without_saturation")
def test_saturation_does_not_rest_on_the_conversion():
    assert codes([1e30, -torch.inf, 500.0]) == [0x7E, 0xFE, 0x7E]


def test_nan_stays_nan():
    assert codes([torch.nan])[0] & 0x7F == 0x7F
    assert fp8.quantize_dequantize(torch.tensor([torch.nan]), ONE).isnan().all()


def test_every_finite_code_survives():
    every = torch.arange(256, dtype=torch.uint8)
    every = every[(every & 0x7F) != 0x7F]
    values = fp8.decode(every.view(torch.float8_e4m3fn), ONE)
    assert values[:127].tolist() == list(E4M3_GRID)
    assert torch.equal(fp8.encode(values, ONE).view(torch.uint8), every)


def test_encoding_equals_the_definition():
    x = torch.randn(64, 8) * 2.0 ** torch.randint(-12, 10, (64, 1))
    expected = [nearest_code(value, E4M3_GRID) + 128 * (value < 0) for value in x.flatten().tolist()]
    assert fp8.encode(x, ONE).view(torch.uint8).flatten().tolist() == expected


def test_weight_scale_per_channel_by_hand():
    weight = torch.tensor([[1.0, -2.0, 0.5, 0.0], [0.0, 0.0, 0.0, -0.0], [448.0, 32.0, 0.03125, -1.0]])
    scale = fp8.weight_decode_scale(weight, per="channel")
    assert scale.tolist() == [[torch.tensor(2 / 448).item()], [1.0], [1.0]]
    # Row 0 is 224, -448, 112, 0 on the grid: 1.75 * 2**7 = 0x76, 0xFE, 1.75 * 2**6 = 0x6E.
    # Row 2: 32 = 2**5 -> exponent 12 = 0x60; 2**-5 -> exponent 2 = 0x10.
    assert fp8.encode(weight, scale).view(torch.uint8).tolist() == [
        [0x76, 0xFE, 0x6E, 0x00],
        [0x00, 0x00, 0x00, 0x80],
        [0x7E, 0x60, 0x10, 0xB8],
    ]
    assert torch.equal(fp8.decode(fp8.encode(weight, scale), scale), weight)


def test_weight_scale_per_tensor_by_hand():
    weight = torch.tensor([[1.0, -2.0], [0.25, 7.0]], dtype=torch.bfloat16)
    scale = fp8.weight_decode_scale(weight, per="tensor")
    assert scale.tolist() == [7 / 448]  # 2**-6
    # 64, -128, 16, 448
    assert fp8.encode(weight, scale).view(torch.uint8).tolist() == [[0x68, 0xF0], [0x58, 0x7E]]


def test_token_scale_has_the_kernels_floor():
    x = torch.tensor([[[2.0, -4.48]], [[0.0, 0.0]], [[1 / 1024, 0.0]]])
    scale = fp8.token_decode_scale(x)
    assert scale.shape == (3, 1, 1)
    floor = torch.tensor(1 / (448 * 512)).item()
    assert scale.flatten().tolist() == [torch.tensor(4.48).div(448).item(), floor, floor]
    # The last token lies under 1/512: 448 * 512 / 1024 = 224 = 0x76, not 448.
    assert fp8.encode(x, scale).view(torch.uint8)[2].tolist() == [[0x76, 0x00]]
    assert not fp8.quantize_dequantize(x, scale)[1].any()


@pytest.mark.parametrize("amax", [0.0, 1e-45, 1e-38, 1e-31, 1e-25, 1.0, 3.3e38])
def test_scales_are_always_usable(amax):
    scale = fp8.static_decode_scale(torch.tensor([[amax]]))
    assert scale.shape == (1, 1)
    assert 2.0**-126 < scale.item() < torch.inf
    assert fp8.static_decode_scale(torch.tensor(amax)).shape == (1,)
    x = torch.tensor([[amax, -amax, 0.0]])
    assert fp8.quantize_dequantize(x, scale).isfinite().all()
    assert fp8.quantize_dequantize(x, scale)[0, 2].item() == 0.0


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_scale_of_a_broken_weight_is_refused(value):
    weight = torch.ones(2, 4)
    weight[1, 2] = value
    for per in ("tensor", "channel"):
        with pytest.raises(WeightValueError, match="1 NaN" if value != value else "1 Inf"):
            fp8.weight_decode_scale(weight, per=per)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(5, 24), (2, 3, 7), (11,), (0, 4), (300, 700)])
def test_simulation_equals_encode_then_decode(shape, dtype):
    x = (torch.randn(shape) * 3).to(dtype)
    scales = [torch.tensor([0.02])]
    if len(shape) > 1:
        scales.append(fp8.token_decode_scale(x))
    for scale in scales:
        expected = fp8.decode(fp8.encode(x, scale), scale, dtype)
        result = fp8.quantize_dequantize(x, scale)
        assert result.dtype == dtype
        assert torch.equal(result, expected)
        exact = fp8.quantize_dequantize(x, scale, dtype=torch.float32)
        assert torch.equal(exact, fp8.decode(fp8.encode(x, scale), scale))


def test_non_contiguous_input_and_no_change_to_it():
    x = torch.randn(48, 20)
    scale = torch.tensor([0.01])
    for view in (x.T, x[:, ::3], x[5:, 3:9], x[:1].expand(4, 20)):
        before = view.clone()
        solid = view.contiguous()
        assert torch.equal(
            fp8.encode(view, scale).view(torch.uint8), fp8.encode(solid, scale).view(torch.uint8)
        )
        assert torch.equal(fp8.quantize_dequantize(view, scale), fp8.quantize_dequantize(solid, scale))
        assert fp8.encode(view, scale).is_contiguous()
        assert fp8.quantize_dequantize(view, scale).is_contiguous()
        assert torch.equal(view, before)


def test_no_gradient_graph():
    x = torch.randn(4, 8, requires_grad=True)
    assert not fp8.quantize_dequantize(x, ONE).requires_grad
    assert x.grad_fn is None


def test_scale_of_the_wrong_shape_is_refused():
    for shape in ((4,), (8,), (1, 8), (2, 1)):
        with pytest.raises(ShapeError, match=r"\[4, 8\]: expected one value, or one a row: \[4, 1\]"):
            fp8.quantize_dequantize(torch.ones(4, 8), torch.ones(shape))


def test_clipped_elements():
    x = torch.tensor([[448.0, -448.0, 448.5], [-900.0, torch.inf, 0.0]])
    assert fp8.clipped_elements(x, ONE).item() == 3
    assert fp8.clipped_elements(x, torch.tensor([[2.0], [1.0]])).item() == 2
    assert fp8.clipped_elements(x, torch.tensor([3.0])).item() == 1
