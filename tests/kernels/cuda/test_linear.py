"""The small products' own source, emulated, against the definition."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ocrquant.errors import ShapeError
from ocrquant.formats import fp8, nvfp4
from ocrquant.formats.weights import FP8Weight
from ocrquant.kernels.cuda import small_linear, takes_linear
from ocrquant.kernels.linear import PackedWeight, pack
from ocrquant.kernels.linear.reference import linear_reference
from ocrquant.kernels.operand import Operand
from tests.kernels.cuda.making import backwards, needs_emulation, without_barriers

pytestmark = needs_emulation

BF16 = torch.bfloat16
KINDS = ("nvfp4", "fp8")


def packed(kind: str, outputs: int, inputs: int, seed: int = 0) -> PackedWeight:
    weight = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed))
    weight *= 2.0 ** torch.linspace(-6, 6, inputs)  # scales of very different sizes
    if kind == "nvfp4":
        return pack(nvfp4.quantize(weight))
    scale = fp8.weight_decode_scale(weight, "channel")
    return pack(FP8Weight(codes=fp8.encode(weight, scale), decode_scale=scale))


def rows(count: int, width: int) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(1)).to(BF16)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("count", "outputs", "inputs"), [(1, 8, 32), (5, 40, 192), (16, 33, 512), (9, 16, 1184), (19, 7, 96)]
)
def test_equals_the_definition(kind: str, count: int, outputs: int, inputs: int):
    x, weight = rows(count, inputs), packed(kind, outputs, inputs)
    out, wanted = (torch.full((count, outputs), torch.nan) for _ in range(2))
    small_linear(x, weight, out)
    linear_reference(Operand(plain=x), weight, wanted)
    torch.testing.assert_close(out, wanted, rtol=1e-5, atol=1e-5 * float(wanted.abs().max()))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bias_kind", [BF16, torch.float32])
def test_strided_rows_bias_and_rounding(kind: str, bias_kind: torch.dtype):
    weight, bias = packed(kind, 24, 64), torch.randn(24).to(bias_kind)
    x = torch.full((4, 80), torch.nan, dtype=BF16)[:, :64]
    x.copy_(rows(4, 64))
    wide = torch.full((4, 30), torch.nan, dtype=BF16)
    out, wanted = wide[:, 3:27], torch.empty(4, 24, dtype=BF16)
    small_linear(x, weight, out, bias)
    linear_reference(Operand(plain=x), weight, wanted, bias)
    steps = (out.contiguous().view(torch.int16).int() - wanted.view(torch.int16).int()).abs()
    assert int(steps.max()) <= 1
    assert float((steps > 0).float().mean()) < 0.05
    assert wide[:, :3].isnan().all()
    assert wide[:, 27:].isnan().all()


@pytest.mark.parametrize("kind", KINDS)
def test_every_code_has_its_value(kind: str):
    """One input at a time is 1, so that a result is a weight, exactly: all codes at many scales."""
    inputs = 256
    if kind == "fp8":
        codes = torch.arange(256, dtype=torch.uint8).repeat(4, 1)
        codes[codes & 0x7F == 0x7F] = 0
        weight = FP8Weight(codes=codes.view(torch.float8_e4m3fn), decode_scale=torch.full((4, 1), 0.5))
        wanted = codes.view(torch.float8_e4m3fn).float() * 0.5
    else:
        pairs = torch.randint(0, 256, (8, inputs // 2), dtype=torch.uint8)
        scales = torch.arange(1, 0x7F, dtype=torch.uint8).repeat(2)[: 8 * inputs // 16].view(8, -1)
        weight = nvfp4.NVFP4Weight(
            packed=pairs, block_scale=scales.view(torch.float8_e4m3fn), encode_scale=torch.tensor([4.0])
        )
        wanted = weight.dequantize()
    found = torch.cat([found_columns(pack(weight), part) for part in torch.eye(inputs).to(BF16).split(16)])
    assert torch.equal(found.T, wanted)


def found_columns(weight: PackedWeight, x: Tensor) -> Tensor:
    out = torch.empty(len(x), weight.out_features)
    small_linear(x, weight, out)
    return out


def test_a_nan_in_a_weight_shows():
    weight = packed("nvfp4", 8, 64)
    stored = nvfp4.NVFP4Weight(
        packed=torch.full((8, 32), 0x22, dtype=torch.uint8),
        block_scale=torch.full((8, 4), 0x38, dtype=torch.uint8).view(torch.float8_e4m3fn),
        encode_scale=torch.ones(1),
    )
    stored.block_scale.view(torch.uint8)[3, 2] = 0x7F
    out = torch.empty(1, 8)
    small_linear(torch.ones(1, 64, dtype=BF16), pack(stored), out)
    assert out.isnan().flatten().tolist() == [i == 3 for i in range(8)]
    assert out[0, 0] == 64.0
    assert takes_linear(weight)


@pytest.mark.parametrize("kind", KINDS)
def test_barriers(kind: str):
    x, weight = rows(3, 1024), packed(kind, 32, 1024)
    forwards = found_columns(weight, x)
    with backwards():
        assert torch.equal(found_columns(weight, x), forwards)
    with without_barriers():
        assert not torch.equal(found_columns(weight, x), forwards)


def test_refuses_what_its_contract_excludes():
    out = torch.empty(1, 8)
    narrow = packed("nvfp4", 8, 48)
    assert not takes_linear(narrow)
    with pytest.raises(ShapeError, match="nvfp4 of a multiple of 32 inputs.*got nvfp4 of 48"):
        small_linear(rows(1, 48), narrow, out)
    with pytest.raises(ShapeError, match="got bf16 of 64"):
        small_linear(rows(1, 64), pack(torch.zeros(8, 64, dtype=BF16)), out)
    with pytest.raises(ShapeError, match="rows at multiples of 16 bytes"):
        small_linear(torch.zeros(2, 68, dtype=BF16)[:, :64], packed("fp8", 8, 64), torch.empty(2, 8))
