"""The producers' own source, emulated, against the references: what every producer must do, and more."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ocrquant.errors import ShapeError
from ocrquant.formats import fp8
from ocrquant.kernels.cuda import gated_rms_norm, quantize, silu_mul
from ocrquant.kernels.gated_rms_norm.reference import gated_rms_norm_reference
from ocrquant.kernels.operand import Operand, OperandSpec
from ocrquant.kernels.quantize.reference import quantize_reference
from ocrquant.kernels.silu_mul.reference import silu_mul_reference
from tests.kernels import producing
from tests.kernels.cuda.making import backwards, needs_emulation
from tests.kernels.producing import BF16, ENCODE_SCALE, Producer, allocate, assert_same, randn

pytestmark = needs_emulation

EPS = 1e-6
CHECKS = (
    producing.follows_its_reference,
    producing.gives_a_row_the_same_bytes_in_any_batch,
    producing.writes_each_form_as_if_it_were_alone,
    producing.takes_no_rows,
    producing.takes_strided_rows,
    producing.keeps_a_nan_in_its_row,
)


def norm(head: int) -> Producer:
    return Producer(
        run=lambda i, out: gated_rms_norm(i["o"], i["z"], i["weight"], EPS, out),
        reference=lambda i, out: gated_rms_norm_reference(i["o"], i["z"], i["weight"], EPS, out),
        inputs=lambda rows, width, generator: {
            "o": randn((rows, width), generator),
            "z": randn((rows, width), generator, 2.0),
            "weight": randn((head,), generator).float(),
        },
        shared=("weight",),
        unit=head,
    )


PRODUCERS = {
    "quantize": Producer(
        run=lambda i, out: quantize(i["x"], out),
        reference=lambda i, out: quantize_reference(i["x"], out),
        inputs=lambda rows, width, generator: {"x": randn((rows, width), generator)},
    ),
    "silu_mul": Producer(
        run=lambda i, out: silu_mul(i["gate_up"], out),
        reference=lambda i, out: silu_mul_reference(i["gate_up"], out),
        inputs=lambda rows, width, generator: {"gate_up": randn((rows, 2 * width), generator, 3.0)},
    ),
    "norm of 64": norm(64),
    "norm of 128": norm(128),
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", PRODUCERS)
def test_producer(name: str, check):
    check(PRODUCERS[name])


@pytest.mark.parametrize("name", ["quantize", "silu_mul"])
def test_ragged_widths(name: str):
    producing.takes_ragged_widths(PRODUCERS[name])


@pytest.mark.parametrize("name", PRODUCERS)
def test_no_barrier_is_missing(name: str):
    p = PRODUCERS[name]
    inputs = p.make(3, 8 * p.step)
    forwards = p.produced(inputs, 8 * p.step)
    with backwards():
        assert_same(p.produced(inputs, 8 * p.step), forwards)


def poisoned(rows: int, width: int, spec: OperandSpec) -> Operand:
    out = spec.allocate(rows, width, BF16, torch.device("cpu"))
    for name in ("plain", "fp8", "fp8_scale", "nvfp4", "nvfp4_scale", "nvfp4_swizzled"):
        tensor = getattr(out, name)
        if tensor is not None and tensor.numel():
            tensor.view(torch.uint8).fill_(0xFF)
    return out


@pytest.mark.parametrize(("rows", "width"), [(1, 16), (5, 208), (130, 64), (2, 2096)])
def test_swizzled_scales_have_zeros_around(rows: int, width: int):
    x = randn((rows, width), torch.Generator().manual_seed(width))
    spec = OperandSpec(nvfp4_encode_scale=ENCODE_SCALE, swizzles=True)
    out, wanted = poisoned(rows, width, spec), poisoned(rows, width, spec)
    quantize(x, out)
    quantize_reference(x, wanted)
    assert_same(out, wanted, names=("nvfp4", "nvfp4_swizzled"))


@pytest.mark.parametrize("scale", [0.01, 1.0, 3.7])
@pytest.mark.parametrize("width", [40, 2056])
def test_one_scale_for_all_tokens(scale: float, width: int):
    x, static = randn((3, width), torch.Generator().manual_seed(1), 4.0), torch.tensor([scale])
    out = poisoned(3, width, OperandSpec(fp8=True, fp8_decode_scale=static))
    quantize(x, out)
    assert out.fp8 is not None
    assert torch.equal(out.fp8, fp8.encode(x, static).view(torch.uint8))


def test_a_row_longer_than_a_block_of_threads():
    x = randn((2, 9008), torch.Generator().manual_seed(2))
    out, wanted = allocate(2, 9008), allocate(2, 9008)
    quantize(x, out)
    quantize_reference(x, wanted)
    assert_same(out, wanted)


def test_the_plain_form_may_be_the_rows_themselves():
    x = randn((3, 48), torch.Generator().manual_seed(4))
    out, wanted = allocate(3, 48, plain=False), allocate(3, 48)
    quantize_reference(x, wanted)
    quantize(x, Operand(plain=x, fp8=out.fp8, fp8_scale=out.fp8_scale))
    assert_same(out, wanted, names=("fp8", "fp8_scale"))
    assert torch.equal(x, wanted.plain)


def test_by_hand():
    # G = 448 * 6 / 6: the block's scale is 448 G / 448 = 1 in units of 1 / G.
    x = torch.zeros(1, 16, dtype=BF16)
    x[0, :5] = torch.tensor([6.0, -3.0, 0.25, 0.75, -0.1])
    out = poisoned(1, 16, OperandSpec(fp8=True, nvfp4_encode_scale=torch.tensor([448.0])))
    quantize(x, out)
    assert out.nvfp4_scale is not None
    assert out.nvfp4 is not None
    assert out.fp8_scale is not None
    assert out.nvfp4_scale.tolist() == [[0x7E]]
    assert out.nvfp4.tolist() == [[0xD7, 0x20, 0x08, 0, 0, 0, 0, 0]]
    assert out.fp8_scale.tolist() == [torch.tensor(6 / 448).item()]


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-38, 3e38, torch.inf, -torch.inf])
@pytest.mark.parametrize("encode_scale", [1.0, 2688.0, 1e-30, 1e30])
def test_blocks_at_the_edges(value: float, encode_scale: float):
    x = torch.linspace(-1, 1, 32).to(BF16).view(1, 32)
    x[0, 3] = value
    scale = torch.tensor([encode_scale])
    spec = OperandSpec(nvfp4_encode_scale=scale)
    out, wanted = poisoned(1, 32, spec), poisoned(1, 32, spec)
    quantize(x, out)
    quantize_reference(x, wanted)
    assert_same(out, wanted, names=("nvfp4", "nvfp4_scale"))


def test_nan_has_the_codes_of_the_reference():
    x = randn((2, 32), torch.Generator().manual_seed(3))
    x[0, 4], x[1, 17] = torch.nan, -torch.nan
    out, wanted = allocate(2, 32), allocate(2, 32)
    quantize(x, out)
    quantize_reference(x, wanted)
    assert_same(out, wanted, names=("nvfp4", "nvfp4_scale"))
    assert_signless(out.fp8, wanted.fp8)


def assert_signless(a: Tensor | None, b: Tensor | None) -> None:
    assert a is not None
    assert b is not None
    assert torch.equal(a & 0x7F, b & 0x7F)


def test_an_infinite_row():
    x = randn((2, 32), torch.Generator().manual_seed(3))
    x[0, 4] = torch.inf
    out, wanted = allocate(2, 32), allocate(2, 32)
    quantize(x, out)
    quantize_reference(x, wanted)
    assert_signless(out.fp8, wanted.fp8)
    assert_same(out, wanted, names=("fp8_scale", "nvfp4", "nvfp4_scale"))


def test_refuses_what_its_contract_excludes():
    x = torch.zeros(2, 24, dtype=BF16)
    with pytest.raises(ShapeError, match="encode_scale, and nvfp4_scale or nvfp4_swizzled"):
        quantize(x, Operand(nvfp4=torch.empty(2, 12, dtype=torch.uint8)))
    with pytest.raises(ShapeError, match=r"V of \(8, 16"):
        gated_rms_norm(x, x, torch.ones(24), EPS, Operand(plain=x))
    with pytest.raises(ShapeError, match="x: expected torch.bfloat16, got torch.float32"):
        quantize(x.float(), Operand(plain=x))
    with pytest.raises(ShapeError, match="at least one form"):
        silu_mul(x, Operand())
