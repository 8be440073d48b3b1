"""FlashInfer and flash-linear-attention against what runs unasked: the same numbers, and the time.

What the table of products and the gated delta rule say of them rests on these lines. A library is measured
where it is installed in a version that is called, whether ``OCRQUANT_LIBRARIES`` names it or not. Knows sizes
of Qwen3.5-9B.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ocrquant.bench.gpu.kernels import MODEL_SHAPE, Arms, make_codes, random_rows
from ocrquant.bench.gpu.result import Line, not_measured
from ocrquant.bench.gpu.session import Session
from ocrquant.bench.timing import Estimate
from ocrquant.bench.weights import quantize_weight, random_weight
from ocrquant.formats import Precision
from ocrquant.formats.weights import FP8Weight
from ocrquant.kernels.gated_delta_rows import gated_delta_rows
from ocrquant.kernels.gated_delta_rows.chunked import gated_delta_rows_chunked
from ocrquant.kernels.libraries import unusable
from ocrquant.kernels.linear import PackedWeight, pack
from ocrquant.kernels.linear.reference import linear_reference
from ocrquant.kernels.matmul.arch import ARCHES
from ocrquant.kernels.matmul.library import IMPLEMENTATIONS
from ocrquant.kernels.matmul.table import RULES, Product, obstacle
from ocrquant.kernels.operand import Operand
from ocrquant.kernels.quantize import quantize

__all__ = ["fla", "flashinfer"]

_MICRO = 1e6
_ROWS = (1, 32, 512)
_LENGTHS = (512, 4096)
_CLOSE = 2.0**-7
"""Of the largest result: a step or two of bf16, for sums in another order."""
_CHUNKED_CLOSE = 0.02
"""Of the norm: chunks multiply in bf16."""


def flashinfer(session: Session) -> Iterator[Line]:
    """Products of a layer and the head by FlashInfer, each against torch's."""
    missing = unusable("flashinfer")
    for precision, ours, theirs in (
        (Precision.NVFP4, "scaled_mm blocks", "flashinfer mm_fp4"),
        (Precision.FP8, "scaled_mm rows", "flashinfer bmm_fp8"),
    ):
        if missing:
            yield not_measured("flashinfer", f"{theirs} against {ours}", missing)
            continue
        yield from _products(session, precision, ours, theirs)


def _obstacle(implementation: str, outputs: int, inputs: int, arch: str) -> str:
    """Why a rule of the table does not serve a product, whether its library is asked for or not."""
    rule = next(rule for rule in RULES if rule.implementation == implementation)
    product = Product(rule.form, outputs, inputs, is_uniform=True)
    return (
        obstacle(replace(rule, library=None), product, ARCHES[arch])
        if arch in ARCHES
        else f"{arch} is not known"
    )


def _products(session: Session, precision: Precision, ours: str, theirs: str) -> Iterator[Line]:
    generator = torch.Generator(session.device).manual_seed(0)
    for product in MODEL_SHAPE.products:
        outputs, inputs = product.out_features, product.in_features
        size = f"{product.part} {outputs} x {inputs}"
        if reason := _obstacle(theirs, outputs, inputs, session.arch):
            yield not_measured("flashinfer", f"{theirs}, {size}", reason)
            continue
        weight = _weight(random_weight((outputs, inputs), generator), precision)
        for count in _ROWS:
            x = _operand(count, inputs, precision, session.device)
            out = torch.empty(count, outputs, dtype=torch.bfloat16, device=session.device)
            what = f"{size}, {count} rows"
            IMPLEMENTATIONS[theirs](x, weight, out, None)
            yield _agreement("flashinfer", f"{theirs}, {what}", out, _defined(x, weight, out))
            arms: Arms = {
                name: partial(IMPLEMENTATIONS[name], x, weight, out, None) for name in (ours, theirs)
            }
            yield _faster("flashinfer", what, session.time(arms), ours, theirs)


def _weight(weight: Tensor, precision: Precision) -> PackedWeight:
    """Quantized with one scale beside those of blocks."""
    stored = quantize_weight(weight, precision)
    if isinstance(stored, FP8Weight):
        one = torch.full_like(stored.decode_scale, float(stored.decode_scale.amax()))
        stored = FP8Weight(codes=stored.codes, decode_scale=one)
    return pack(stored, weight.device, for_gpu=True)


def _operand(count: int, width: int, precision: Precision, device: torch.device) -> Operand:
    operand, _ = make_codes(count, width, str(precision), device)
    quantize(random_rows(count, width, device), operand)
    if precision is Precision.FP8:
        return Operand(fp8=operand.fp8, fp8_static=torch.full((1,), 0.01, device=device))
    return operand


def _defined(x: Operand, weight: PackedWeight, out: Tensor) -> Tensor:
    expected = torch.empty_like(out)
    linear_reference(x, weight, expected)
    return expected


def _agreement(section: str, what: str, found: Tensor, expected: Tensor) -> Line:
    """The share of results that are those of the definition, within the noise of their sums."""
    error = (found.float() - expected.float()).abs()
    share = (error <= _CLOSE * expected.float().abs().max()).double().mean()
    return Line.of(section, f"{what}, results of the definition", float(share), at_least=1)


def _faster(section: str, what: str, timed: dict[str, Estimate], ours: str, theirs: str) -> Line:
    gain = timed[ours].median / timed[theirs].median
    note = f"{ours} {timed[ours].median * _MICRO:.1f} us"
    return Line.of(section, f"{what}, {theirs}", timed[theirs].scaled(_MICRO), "us", gain=gain, note=note)


def fla(session: Session) -> Iterator[Line]:
    """The gated delta rule of one layer over a part of one prompt: chunks against row after row."""
    missing = unusable("fla")
    for count in _LENGTHS:
        what = f"gated delta rule of a layer, {count} rows of one prompt"
        if missing:
            yield not_measured("fla", what, missing)
            continue
        arms, results = _rule_arms(count, session.device)
        for arm in arms.values():
            arm()
        ours, theirs = (results[name].float() for name in ("rows", "fla"))
        error = float((ours - theirs).norm() / ours.norm())
        note = f"relative error {error:.2g}, {_CHUNKED_CLOSE} at most"
        yield Line.of("fla", f"{what}, same results", float(error <= _CHUNKED_CLOSE), at_least=1, note=note)
        yield _faster("fla", what, session.time(arms), "rows", "fla")


def _rule_arms(count: int, device: torch.device) -> tuple[Arms, dict[str, Tensor]]:
    """Both ways, each with a state and results of its own; every call begins a prompt."""
    shape = MODEL_SHAPE
    mixed = random_rows(count, shape.conv_channels, device)
    a, b = (random_rows(count, shape.value_heads, device, seed) for seed in (2, 3))
    a_log, dt_bias = (torch.ones(shape.value_heads, device=device) for _ in range(2))
    slots, fresh = (
        torch.zeros(1, dtype=torch.int32, device=device),
        torch.ones(1, dtype=torch.int32, device=device),
    )
    starts = torch.tensor([0, count], dtype=torch.int32, device=device)
    names = ("rows", "fla")
    state, out = (
        {name: torch.zeros(size, dtype=kind, device=device) for name in names}
        for size, kind in (
            ((1, shape.value_heads, shape.state_dim, shape.state_dim), torch.float32),
            ((count, shape.value_heads * shape.state_dim), torch.bfloat16),
        )
    )
    rule = (mixed, a, b, a_log, dt_bias)

    def by_rows() -> None:
        gated_delta_rows(*rule, state["rows"], starts, slots, fresh, out["rows"], shape.key_heads)

    def by_chunks() -> None:
        span = slice(0, count)
        gated_delta_rows_chunked(*rule, state["fla"], slots, fresh, out["fla"], shape.key_heads, span)

    return {"rows": by_rows, "fla": by_chunks}, out
