"""Every producer in Triton against its definition: codes and scales bit for bit."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from triton.runtime.interpreter import GridExecutor

from ocrquant.errors import ShapeError
from ocrquant.formats.scale_layout import swizzle, unswizzle
from ocrquant.kernels.gated_rms_norm import gated_rms_norm
from ocrquant.kernels.gated_rms_norm.reference import gated_rms_norm_reference
from ocrquant.kernels.operand import Operand, OperandSpec
from ocrquant.kernels.quantize import quantize
from ocrquant.kernels.quantize.reference import quantize_reference
from ocrquant.kernels.rms_norm import rms_norm
from ocrquant.kernels.rms_norm.reference import rms_norm_reference
from ocrquant.kernels.selection import choices
from ocrquant.kernels.sigmoid_mul import sigmoid_mul
from ocrquant.kernels.sigmoid_mul.reference import sigmoid_mul_reference
from ocrquant.kernels.silu_mul import silu_mul
from ocrquant.kernels.silu_mul.reference import silu_mul_reference
from tests.kernels.triton.cases.making import (
    BF16,
    DEVICE,
    ENCODE_SCALE,
    SPECS,
    assert_forms,
    every_spec,
    only_interpreted,
    padded,
    poisoned,
    randn,
    raw,
)

EPS, HEAD = 1e-6, 32
Inputs = dict[str, Tensor]


@dataclass(frozen=True)
class Producer:
    op: str
    run: Callable[[Inputs, Operand], None]
    reference: Callable[[Inputs, Operand], None]
    inputs: Callable[[int, int], Inputs]
    shared: tuple[str, ...] = ()


def _norm(op, rule, *, has_delta):
    return lambda i, out: op(i["x"], i["weight"], EPS, out, rule, i["delta"] if has_delta else None)


def _norm_inputs(rows: int, width: int) -> Inputs:
    weight = randn(1, width, seed=2)[0].float() * 0.3
    return {"x": randn(rows, width), "delta": randn(rows, width, seed=1), "weight": weight}


def _gated_inputs(rows: int, width: int) -> Inputs:
    weight = randn(1, HEAD, seed=2)[0].float() + 1
    return {"o": randn(rows, width), "z": randn(rows, width, seed=1), "weight": weight}


PRODUCERS = {
    "quantize": Producer(
        "quantize",
        lambda i, out: quantize(i["x"], out),
        lambda i, out: quantize_reference(i["x"], out),
        lambda rows, width: {"x": randn(rows, width)},
    ),
    "silu_mul": Producer(
        "silu_mul",
        lambda i, out: silu_mul(i["gate_up"], out),
        lambda i, out: silu_mul_reference(i["gate_up"], out),
        lambda rows, width: {"gate_up": randn(rows, 2 * width, scale=2.0)},
    ),
    "sigmoid_mul": Producer(
        "sigmoid_mul",
        lambda i, out: sigmoid_mul(i["x"], i["qg"], out),
        lambda i, out: sigmoid_mul_reference(i["x"], i["qg"], out),
        lambda rows, width: {"x": randn(rows, width), "qg": randn(rows, width // 16, 32, seed=1)},
    ),
    "gated_rms_norm": Producer(
        "gated_rms_norm",
        lambda i, out: gated_rms_norm(i["o"], i["z"], i["weight"], EPS, out),
        lambda i, out: gated_rms_norm_reference(i["o"], i["z"], i["weight"], EPS, out),
        _gated_inputs,
        ("weight",),
    ),
} | {
    f"rms_norm {rule}{' residual' * has_delta}": Producer(
        "rms_norm",
        _norm(rms_norm, rule, has_delta=has_delta),
        _norm(rms_norm_reference, rule, has_delta=has_delta),
        _norm_inputs,
        ("weight",),
    )
    for rule, has_delta in (("unit", True), ("scaled", False))
}
every_producer = pytest.mark.parametrize("p", PRODUCERS.values(), ids=PRODUCERS.keys())


def check(p: Producer, inputs: Inputs, spec: OperandSpec, rows: int, width: int) -> Operand:
    out, expected = poisoned(spec, rows, width), poisoned(spec, rows, width)
    copy = {n: t.clone() for n, t in inputs.items()}
    p.reference(copy, expected)
    p.run(inputs, out)
    assert choices()[p.op].implementation == "triton"
    assert_forms(out, expected)
    for name, tensor in inputs.items():
        assert torch.equal(raw(tensor), raw(copy[name])), name  # the residual stream, and what is only read
    return out


@every_producer
@every_spec
def test_equals_its_definition(p, spec):
    # One row, whose swizzled scales are mostly padding; 160 is no multiple of 64.
    check(p, p.inputs(1, 160), spec, 1, 160)


@every_producer
@pytest.mark.parametrize(("rows", "width"), [(3, 32), (5, 96), (2, 2080)])
def test_ragged_sizes(p, rows, width):
    check(p, p.inputs(rows, width), SPECS["by token"], rows, width)
    check(p, p.inputs(rows, width), SPECS["calibrated"], rows, width)


@every_producer
def test_rows_may_be_strided_and_end_in_nan(p):
    inputs = p.inputs(3, 96)
    strided = {n: t if n in p.shared else padded(t) for n, t in inputs.items()}
    assert not any(t.is_contiguous() for n, t in strided.items() if n not in p.shared)
    check(p, strided, SPECS["by token"], 3, 96)


@every_producer
@every_spec
def test_no_rows(p, spec):
    check(p, p.inputs(0, 64), spec, 0, 64)


@every_producer
def test_a_nan_stays_in_its_row(p):
    inputs = p.inputs(3, 64)
    clean, dirty = (poisoned(SPECS["by token"], 3, 64) for _ in range(2))
    p.run({n: t.clone() for n, t in inputs.items()}, clean)
    for name, tensor in inputs.items():
        if name not in p.shared:
            tensor[1] = torch.nan
    p.run(inputs, dirty)
    assert bool(dirty.plain[1].isnan().all())
    assert bool(dirty.fp8_scale[1].isnan())
    assert set(dirty.fp8[1].tolist()) <= {0x7F, 0xFF}
    assert set(dirty.nvfp4_scale[1].tolist()) == {0x7F}
    for form in ("plain", "fp8", "fp8_scale", "nvfp4", "nvfp4_scale"):
        for row in (slice(0, 1), slice(2, 3)):
            assert torch.equal(raw(getattr(dirty, form)[row]), raw(getattr(clean, form)[row])), form


def test_swizzled_scales_of_more_rows_than_a_tile():
    x = randn(130, 80)
    out = check(PRODUCERS["quantize"], {"x": x}, SPECS["swizzled"], 130, 80)
    rowwise = poisoned(SPECS["by token"], 130, 80)
    quantize_reference(x, rowwise)
    assert out.nvfp4_swizzled.shape == (2 * 2 * 512,)
    assert torch.equal(unswizzle(out.nvfp4_swizzled, 130, 5), rowwise.nvfp4_scale)


def test_the_comparison_sees_padding_that_is_not_written():
    x = randn(3, 80)
    out, expected = (poisoned(SPECS["swizzled"], 3, 80) for _ in range(2))
    quantize(x, out)
    quantize_reference(x, expected)
    left = swizzle(torch.ones(3, 5, dtype=torch.uint8, device=DEVICE)) == 0
    out.nvfp4_swizzled[left.nonzero()[0]] = 0xFF
    with pytest.raises(AssertionError, match="nvfp4_swizzled"):
        assert_forms(out, expected)


def test_hard_numbers():
    """Ties of both grids, saturation, signed zeros, subnormals, infinities and a block of zeros."""
    ties = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0]
    rows = [
        [*ties, *(-t for t in ties)],
        [0.0, -0.0] * 8,
        [1e-38, -1e-38, 1e-30, 1e30] * 4,
        [torch.inf, -torch.inf, 1.0, -1.0] * 4,
        [448.0, 432.0, 440.0, 464.0, 2.0**-9, 2.0**-10, 1.5 * 2.0**-9, 17.0] * 2,
    ]
    x = torch.tensor(rows, device=DEVICE).to(BF16)
    one = torch.ones(1, device=DEVICE)
    for spec in (
        OperandSpec(plain=True, fp8=True, nvfp4_encode_scale=ENCODE_SCALE),
        OperandSpec(plain=True, fp8=True, fp8_decode_scale=one, nvfp4_encode_scale=one * 448),
    ):
        for part in (slice(0, 3), slice(4, 5)):
            check(PRODUCERS["quantize"], {"x": x[part]}, spec, len(x[part]), 16)
    # Infinity over infinity is NaN: only that row, and its scale shows it.
    out, expected = (poisoned(SPECS["by token"], 5, 16) for _ in range(2))
    quantize(x, out)
    quantize_reference(x, expected)
    assert torch.equal(out.fp8_scale, expected.fp8_scale)
    assert torch.equal(out.fp8[3] & 0x7F, expected.fp8[3] & 0x7F)
    for form in ("nvfp4", "nvfp4_scale"):
        assert torch.equal(getattr(out, form), getattr(expected, form)), form


def test_heads_that_are_no_power_of_two_are_refused():
    out = poisoned(SPECS["by token"], 1, 96)
    weight = torch.ones(48, device=DEVICE)
    with pytest.raises(ShapeError, match="a power of two"):
        gated_rms_norm(randn(1, 96), randn(1, 96), weight, EPS, out)


@only_interpreted
def test_rows_may_be_billions_of_elements_apart(monkeypatch):
    """Offsets are 64-bit: the second row begins beyond 2**31 elements; only its own memory is touched."""
    monkeypatch.setattr(
        GridExecutor, "_restore_args_dev", lambda *_: None
    )  # would copy all of it onto itself
    stride, width = 2**31 + 64, 32
    no_reserve = 0x4000  # MAP_NORESERVE of Linux, which the module has from Python 3.13 on
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve
    with mmap.mmap(-1, 2 * (stride + width), flags=flags) as memory:
        storage = torch.frombuffer(memory, dtype=BF16)
        x = storage.as_strided((2, width), (stride, 1))
        x.copy_(randn(2, width))
        out, expected = (poisoned(SPECS["by token"], 2, width) for _ in range(2))
        quantize(x, out)
        quantize_reference(x.clone(), expected)
        assert_forms(out, expected)
        del x, storage
