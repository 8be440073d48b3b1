"""Calls of FlashInfer: what they compute by its layouts, where they serve, what the installed one says."""

import inspect
import sys

import pytest
import torch

from ocrquant.errors import DeviceError
from ocrquant.formats import nvfp4
from ocrquant.formats.precision import Precision
from ocrquant.formats.scale_layout import swizzle
from ocrquant.formats.weights import FP8Weight
from ocrquant.kernels import libraries
from ocrquant.kernels.linear import pack
from ocrquant.kernels.matmul.arch import ARCHES
from ocrquant.kernels.matmul.library import IMPLEMENTATIONS, linear_gpu, rule_for
from ocrquant.kernels.operand import Operand
from tests.kernels.linear.operands import make_operand, make_rows, make_weight
from tests.kernels.matmul import flashinfer_standin
from tests.kernels.matmul.test_library import both

BF16, F32 = torch.bfloat16, torch.float32


@pytest.fixture
def standin(monkeypatch):
    monkeypatch.setitem(sys.modules, "flashinfer", flashinfer_standin.module())


@pytest.fixture
def asked(monkeypatch):
    monkeypatch.setenv("OCRQUANT_LIBRARIES", "flashinfer")
    monkeypatch.setattr(libraries, "unusable", lambda name: "")


def uniform_fp8(outputs, width, scale=0.5):
    codes = torch.randn(outputs, width, generator=torch.Generator().manual_seed(0)).to(torch.float8_e4m3fn)
    return FP8Weight(codes=codes, decode_scale=torch.full((outputs, 1), scale))


def static_rows(count, width):
    x = make_operand(make_rows(count, width), Precision.FP8, True)
    return Operand(fp8=x.fp8, fp8_static=torch.tensor([0.25]))


@pytest.mark.parametrize("rows", [1, 5, 130])
@pytest.mark.parametrize("width", [32, 96, 256])
def test_nvfp4_products_are_those_of_the_definition(standin, rows, width):
    weight = pack(make_weight(Precision.NVFP4, 160, width), for_gpu=True)
    x = make_operand(make_rows(rows, width), Precision.NVFP4, True)
    found, expected = both("flashinfer mm_fp4", weight, x, BF16)
    torch.testing.assert_close(found, expected, rtol=2**-8, atol=2**-8 * float(expected.abs().max()))
    assert (found == expected).float().mean() > 0.9
    tiled = Operand(nvfp4=x.nvfp4, nvfp4_swizzled=swizzle(x.nvfp4_scale), encode_scale=x.encode_scale)
    again, _ = both("flashinfer mm_fp4", weight, tiled, BF16)
    assert torch.equal(again, found)


def test_a_scale_in_another_place_is_seen(standin):
    """The layout is what this test is about: rows of scales one after another give other numbers."""
    weight = pack(make_weight(Precision.NVFP4, 160, 128), for_gpu=True)
    x = make_operand(make_rows(40, 128), Precision.NVFP4, True)
    _, expected = both("flashinfer mm_fp4", weight, x, BF16)
    plain = torch.zeros(128 * 8, dtype=torch.uint8)
    plain.view(128, 8)[:40] = x.nvfp4_scale
    wrong = Operand(nvfp4=x.nvfp4, nvfp4_swizzled=plain, encode_scale=x.encode_scale)
    out = torch.empty(40, 160, dtype=BF16)
    IMPLEMENTATIONS["flashinfer mm_fp4"](wrong, weight, out, None)
    assert not torch.allclose(out, expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("rows", [1, 17])
def test_fp8_products_with_one_scale_a_side_are_those_of_the_definition(standin, rows):
    weight = pack([uniform_fp8(32, 96), uniform_fp8(16, 96)], for_gpu=True)
    assert weight.decode_scale.tolist() == [0.5]
    found, expected = both("flashinfer bmm_fp8", weight, static_rows(rows, 96), BF16)
    torch.testing.assert_close(found, expected, rtol=2**-8, atol=2**-8 * float(expected.abs().max()))


def served(x, weight, dtype=BF16, bias=None, arch="sm_100a"):
    out = torch.empty(2, weight.out_features, dtype=dtype)
    return rule_for(x, weight, out, bias, ARCHES[arch]).implementation


def test_it_serves_where_it_is_asked_for_and_can(asked, monkeypatch):
    weight = pack(make_weight(Precision.NVFP4, 64, 96), for_gpu=True)
    x = make_operand(make_rows(2, 96), Precision.NVFP4, True)
    assert served(x, weight) == "flashinfer mm_fp4"
    assert served(x, weight, arch="sm_90a") == "decode"
    assert served(x, weight, dtype=F32) == "scaled_mm blocks"
    assert served(x, weight, bias=torch.zeros(64, dtype=BF16)) == "scaled_mm blocks"
    # 16 outputs more are no multiple of 32; merged parts with two global scales need one for each channel.
    assert served(x, pack(make_weight(Precision.NVFP4, 80, 96), for_gpu=True)) == "scaled_mm blocks"
    parts = [make_weight(Precision.NVFP4, 32, 96, seed, scale) for seed, scale in ((0, 1.0), (1, 30.0))]
    assert served(x, pack(parts, for_gpu=True)) == "scaled_mm blocks"
    monkeypatch.setenv("OCRQUANT_LIBRARIES", "fla")
    assert served(x, weight) == "scaled_mm blocks"


def test_fp8_with_a_scale_for_every_row_or_channel_stays_with_torch(asked):
    one, by_channel = pack(uniform_fp8(32, 96), for_gpu=True), make_weight(Precision.FP8, 32, 96)
    assert served(static_rows(2, 96), one) == "flashinfer bmm_fp8"
    assert served(static_rows(2, 96), one, arch="sm_90a") == "flashinfer bmm_fp8"
    assert served(static_rows(2, 96), pack(by_channel, for_gpu=True)) == "scaled_mm rows"
    assert served(make_operand(make_rows(2, 96), Precision.FP8, True), one) == "scaled_mm rows"


def test_one_that_is_asked_for_and_missing_is_refused_by_name(monkeypatch):
    monkeypatch.setenv("OCRQUANT_LIBRARIES", "flashinfer")
    monkeypatch.setattr(libraries, "unusable", lambda name: "flashinfer-python 0.5.0 is not >=0.7.4,<0.8")
    monkeypatch.setattr("ocrquant.kernels.matmul.library.arch_of", lambda device: ARCHES["sm_100a"])
    weight = pack(make_weight(Precision.NVFP4, 64, 96), for_gpu=True)
    x = make_operand(make_rows(2, 96), Precision.NVFP4, True)
    with pytest.raises(DeviceError, match=r"flashinfer-python>=0.7.4,<0.8, got flashinfer-python 0.5.0"):
        linear_gpu(x, weight, torch.empty(2, 64, dtype=BF16))


def test_the_installed_library_takes_what_is_passed(monkeypatch):
    """Its own checks, its own reading of scales, and its own values of codes; nothing of it needs a GPU."""
    flashinfer = pytest.importorskip("flashinfer")
    from flashinfer.gemm import gemm_base
    from flashinfer.quantization import fp4_quantization
    from flashinfer.trace.templates import gemm

    for name in ("mm_fp4", "bmm_fp8"):
        ours = inspect.signature(getattr(flashinfer_standin, name))
        assert list(ours.parameters) == list(inspect.signature(getattr(flashinfer, name)).parameters)
    passed = {}

    def watch(*arguments, **named):
        bound = inspect.signature(flashinfer.mm_fp4).bind(*arguments, **named)
        bound.apply_defaults()
        passed.update(bound.arguments)
        assert gemm_base._check_mm_fp4_problem_size(**passed)

    weight = pack(make_weight(Precision.NVFP4, 160, 96), for_gpu=True)
    x = make_operand(make_rows(130, 96), Precision.NVFP4, True)
    monkeypatch.setitem(sys.modules, "flashinfer", flashinfer_standin.module())
    monkeypatch.setattr(sys.modules["flashinfer"], "mm_fp4", watch)
    IMPLEMENTATIONS["flashinfer mm_fp4"](x, weight, torch.empty(130, 160, dtype=BF16), None)
    read = gemm._unswizzle_sf_128x4(passed["a_descale"], 130, 6)
    assert torch.equal(read, x.nvfp4_scale)
    assert torch.equal(
        gemm._unswizzle_sf_128x4(passed["b_descale"].t(), 160, 6), weight.stored.block_scale.view(torch.uint8)
    )
    decode = x.encode_scale.reciprocal()
    values = fp4_quantization._e2m1_and_ufp8sf_scale_to_float_cpu(
        x.nvfp4, x.nvfp4_scale, decode, 16, 1, False
    )
    codes, scales = nvfp4.unpack(x.nvfp4), x.nvfp4_scale.view(torch.float8_e4m3fn)
    torch.testing.assert_close(values, nvfp4.decode(codes, scales, x.encode_scale), rtol=1e-6, atol=0)
