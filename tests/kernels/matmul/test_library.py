"""Products by libraries against the definition, on a CPU as far as torch computes there."""

import pytest
import torch

from ocrquant.formats.precision import Precision
from ocrquant.formats.scale_layout import swizzle
from ocrquant.kernels.linear import pack
from ocrquant.kernels.linear.reference import linear_reference
from ocrquant.kernels.matmul import library
from ocrquant.kernels.matmul.arch import ARCHES
from ocrquant.kernels.matmul.library import IMPLEMENTATIONS, form_of, linear_gpu, rule_for
from ocrquant.kernels.operand import Operand
from tests.kernels.linear.operands import COMBINATIONS, make_operand, make_rows, make_weight
from tests.kernels.matmul import scaled

BF16, F32 = torch.bfloat16, torch.float32
CASES = [  # what serves, precision, rows in codes, dtypes of the result, of the bias
    ("mm", Precision.BF16, False, BF16, None),
    ("mm", Precision.BF16, False, BF16, BF16),
    ("mm", Precision.BF16, False, F32, F32),
    ("scaled_mm rows", Precision.FP8, True, BF16, None),
    ("scaled_mm rows", Precision.FP8, True, BF16, BF16),
    ("scaled_mm sums", Precision.FP8, True, BF16, F32),
    ("scaled_mm sums", Precision.FP8, True, F32, F32),
    ("scaled_mm sums", Precision.FP8, True, BF16, None),
    ("scaled_mm blocks", Precision.NVFP4, True, BF16, None),
    ("scaled_mm blocks", Precision.NVFP4, True, BF16, BF16),
    ("scaled_mm blocks", Precision.NVFP4, True, F32, None),
    ("decode", Precision.FP8, True, BF16, None),
    ("decode", Precision.FP8, False, BF16, BF16),
    ("decode", Precision.NVFP4, True, F32, None),
    ("decode", Precision.NVFP4, False, BF16, None),
]


@pytest.fixture(params=["torch", "plain"])
def products(request, monkeypatch):
    """Scaled products as torch computes them on a CPU (no E2M1 there), and in plain arithmetic."""
    if request.param == "plain":
        monkeypatch.setattr(library, "_scaled_mm", scaled.scaled_mm)
    return request.param


def both(implementation, weight, x, dtype, bias=None):
    """What an implementation writes, into every other column of a wider matrix too, and the definition."""
    shape = (
        len(x.plain if x.plain is not None else x.fp8 if x.fp8 is not None else x.nvfp4),
        weight.shape[0],
    )
    expected, found = torch.full(shape, torch.nan, dtype=dtype), torch.full(shape, torch.nan, dtype=dtype)
    linear_reference(x, weight, expected, bias)
    IMPLEMENTATIONS[implementation](x, weight, found, bias)
    wide = torch.full((shape[0], shape[1] + 16), 7.0, dtype=dtype)
    IMPLEMENTATIONS[implementation](x, weight, wide[:, 16:], bias)
    assert torch.equal(wide[:, 16:], found)
    assert (wide[:, :16] == 7).all()
    return found, expected


@pytest.mark.parametrize("rows", [1, 5, 130])
@pytest.mark.parametrize(("implementation", "precision", "in_codes", "dtype", "bias"), CASES)
def test_products_are_those_of_the_definition(
    products, implementation, precision, in_codes, dtype, bias, rows
):
    if products == "torch" and implementation == "scaled_mm blocks":
        pytest.skip("torch multiplies E2M1 on GPUs only")
    weight = pack(make_weight(precision, 48, 96), for_gpu=True)
    x = make_operand(make_rows(rows, 96), precision, in_codes)
    added = None if bias is None else torch.randn(48).to(bias)
    found, expected = both(implementation, weight, x, dtype, added)
    # One rounding of the same sum: half a unit in the last place of bf16, or float32's noise.
    tolerance = 2.0**-8 if dtype == BF16 else 1e-5
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))
    assert torch.equal(found, expected) or (found == expected).float().mean() > 0.9 or dtype == F32


def test_merged_weights_keep_their_own_global_scales(monkeypatch):
    monkeypatch.setattr(library, "_scaled_mm", scaled.scaled_mm)
    parts = [make_weight(Precision.NVFP4, 32, 64, seed, scale) for seed, scale in ((0, 1.0), (1, 30.0))]
    merged, same = pack(parts, for_gpu=True), pack([parts[0], parts[0]], for_gpu=True)
    assert merged.decode_scale is None
    assert same.decode_scale == 1 / parts[0].encode_scale
    x = make_operand(make_rows(3, 64), Precision.NVFP4, True)
    for weight in (merged, same):
        found, expected = both("scaled_mm blocks", weight, x, BF16)
        torch.testing.assert_close(found, expected, rtol=2**-8, atol=1e-3)


def test_rows_in_tiles_are_read_as_such(monkeypatch):
    monkeypatch.setattr(library, "_scaled_mm", scaled.scaled_mm)
    weight = pack(make_weight(Precision.NVFP4, 32, 96), for_gpu=True)
    x = make_operand(make_rows(130, 96), Precision.NVFP4, True)
    tiled = Operand(nvfp4=x.nvfp4, nvfp4_swizzled=swizzle(x.nvfp4_scale), encode_scale=x.encode_scale)
    for implementation in ("scaled_mm blocks", "decode"):
        outs = [torch.empty(130, 32, dtype=BF16) for _ in range(2)]
        for operand, out in zip((x, tiled), outs, strict=True):
            IMPLEMENTATIONS[implementation](operand, weight, out, None)
        assert torch.equal(*outs)


def test_one_scale_for_all_rows_is_one_for_each():
    weight = pack(make_weight(Precision.FP8, 32, 64), for_gpu=True)
    x = make_operand(make_rows(4, 64), Precision.FP8, True)
    static = Operand(fp8=x.fp8, fp8_static=torch.tensor([0.25]))
    by_row = Operand(fp8=x.fp8, fp8_scale=torch.full((4,), 0.25))
    for implementation in ("scaled_mm rows", "scaled_mm sums", "decode"):
        outs = [torch.empty(4, 32, dtype=BF16) for _ in range(2)]
        for operand, out in zip((static, by_row), outs, strict=True):
            IMPLEMENTATIONS[implementation](operand, weight, out, None)
        assert torch.equal(*outs)


def test_a_nan_code_reaches_its_channel_and_no_other():
    stored = make_weight(Precision.FP8, 32, 64)
    stored.codes.view(torch.uint8)[5, 7] = 0x7F
    weight = pack(stored, for_gpu=True)
    x = make_operand(make_rows(3, 64), Precision.FP8, True)
    for implementation in ("scaled_mm rows", "scaled_mm sums", "decode"):
        out = torch.empty(3, 32, dtype=BF16)
        IMPLEMENTATIONS[implementation](x, weight, out, None)
        assert out.isnan().all(0).nonzero().flatten().tolist() == [5]
        assert out.isnan().sum() == 3


def test_arguments_that_torch_refuses_are_refused_here_too():
    """The stand-in is no easier than torch: scales row by row, or an odd width, do not pass."""
    weight = pack(make_weight(Precision.NVFP4, 32, 96), for_gpu=True)
    x = make_operand(make_rows(130, 96), Precision.NVFP4, True)
    e2m1, e4m3 = torch.float4_e2m1fn_x2, torch.float8_e4m3fn
    packed = (x.nvfp4.view(e2m1), weight.stored.packed.view(e2m1))
    tiles = ([swizzle(x.nvfp4_scale).view(e4m3)], [scaled.BLOCK], [1])
    plain = ([x.nvfp4_scale.view(e4m3)], [scaled.BLOCK], [1])
    right = ([weight.tiles.view(e4m3)], [scaled.BLOCK], [1])
    out = torch.empty(130, 32)
    scaled.scaled_mm(*packed, *tiles, *right, None, out)
    with pytest.raises(RuntimeError, match="NV scaling"):
        scaled.scaled_mm(*packed, *plain, *right, None, out)
    codes = torch.zeros(4, 24, dtype=e4m3)
    one = ([torch.ones(1)], [scaled.TENSOR], [])
    with pytest.raises(RuntimeError, match="divisible by 16"):
        scaled.scaled_mm(codes, torch.zeros(16, 24, dtype=e4m3), *one, *one, None, torch.empty(4, 16))


@pytest.mark.parametrize(("precision", "in_codes"), COMBINATIONS)
def test_every_form_has_its_rule(precision, in_codes):
    weight = pack(make_weight(precision, 32, 64), for_gpu=True)
    x = make_operand(make_rows(2, 64), precision, in_codes)
    assert form_of(x, weight) == f"{precision if in_codes else 'bf16'} x {precision}"
    for arch in ARCHES.values():
        assert rule_for(x, weight, torch.empty(2, 32, dtype=BF16), None, arch).form == form_of(x, weight)


def test_a_float32_bias_is_added_before_the_only_rounding():
    weight = pack(make_weight(Precision.FP8, 32, 64), for_gpu=True)
    x, out = make_operand(make_rows(2, 64), Precision.FP8, True), torch.empty(2, 32, dtype=BF16)
    served = [
        rule_for(x, weight, out, bias, ARCHES["sm_100a"]).implementation for bias in (None, torch.ones(32))
    ]
    assert served == ["scaled_mm rows", "scaled_mm sums"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("rows", [1, 16, 130])
@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize(("precision", "in_codes"), COMBINATIONS)
def test_products_on_a_device(precision, in_codes, dtype, rows):
    """Against the definition on the device, captured and replayed with other rows in the same memory."""
    weight = pack(make_weight(precision, 256, 512), "cuda")
    x = make_operand(make_rows(rows, 512).cuda(), precision, in_codes)
    found, expected = (torch.empty(rows, 256, dtype=dtype, device="cuda") for _ in range(2))
    linear_gpu(x, weight, found)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        linear_gpu(x, weight, found)
    other = make_operand(make_rows(rows, 512, seed=5).cuda(), precision, in_codes)
    for name in ("plain", "fp8", "fp8_scale", "nvfp4", "nvfp4_scale", "encode_scale"):
        if getattr(x, name) is not None:
            getattr(x, name).copy_(getattr(other, name))
    graph.replay()
    linear_reference(x, weight, expected)
    torch.testing.assert_close(found, expected, rtol=2**-7, atol=2**-7 * float(expected.abs().max()))
