"""Kernels by themselves: bandwidth of what is bound by memory, products against their limits, states.

A share of bandwidth is one of a copy that was timed in the same minutes. Knows sizes of Qwen3.5-9B.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ocrquant.bench.gpu.result import Line, not_measured
from ocrquant.bench.gpu.session import Session
from ocrquant.bench.timing import Estimate
from ocrquant.bench.weights import INPUT_AMAX, quantize_weight, random_weight
from ocrquant.cost import MODELS, TARGETS, Target
from ocrquant.engine.state import ReplayPool
from ocrquant.formats import FORMATS, Precision, nvfp4
from ocrquant.kernels import cuda
from ocrquant.kernels.gated_rms_norm import gated_rms_norm
from ocrquant.kernels.linear import linear, pack
from ocrquant.kernels.operand import Operand, OperandSpec
from ocrquant.kernels.quantize import quantize
from ocrquant.kernels.replay import replay_rows
from ocrquant.kernels.selection import TRITON_OPS
from ocrquant.kernels.silu_mul import silu_mul
from ocrquant.models.spec import StateSpec

__all__ = [
    "MODEL_SHAPE",
    "TARGET_OF",
    "bandwidth",
    "make_codes",
    "products",
    "random_rows",
    "states",
]

TARGET_OF = {"sm_90a": "h200", "sm_100a": "b200", "sm_120a": "rtx-pro-6000"}
"""Stated limits by architecture."""

MODEL_SHAPE = MODELS["qwen3.5-9b"]
_GIGA, _MICRO = 1e9, 1e6
_COPY_BYTES = 1 << 30
_CHUNK = 8192
"""Rows of a large part of prompts: what a fused kernel reads and writes is then beyond any cache."""
_SHARE, _GDN_GAIN = 0.8, 2.5
_WINDOW, _REQUESTS = 16, 32


def bandwidth(session: Session) -> Iterator[Line]:
    """A copy, and fused producers beside it."""
    copied = torch.zeros(2, _COPY_BYTES, dtype=torch.uint8, device=session.device)
    copy = session.time({"copy": partial(copied[0].copy_, copied[1])})["copy"].inverse(2 * _COPY_BYTES)
    session.found["copy_bytes_per_s"] = copy.median
    yield Line.of("bandwidth", "copy of 1 GiB, bytes read and written", copy.scaled(1 / _GIGA), "GB/s")
    del copied
    missing = {"cuda": cuda.missing_reason(session.device), "triton": _missing_triton("silu_mul")}
    for name, make in _PRODUCERS.items():
        for form in ("fp8", "nvfp4"):
            arms, moved = make(session.device, form)
            for kind in [kind for kind in arms if missing[kind]]:
                yield not_measured("bandwidth", f"{name} to {form}, {kind}", missing[kind])
                del arms[kind]
            for kind, seconds in session.time(arms).items() if arms else ():
                rate = seconds.inverse(moved)
                yield Line.of(
                    "bandwidth",
                    f"{name} to {form}, {kind}, share of the copy",
                    rate.scaled(1 / copy.median),
                    at_least=_SHARE,
                    note=f"{rate.median / _GIGA:.0f} GB/s, {seconds.median * _MICRO:.1f} us, {_CHUNK} rows",
                )
    yield from _small_products(session, copy.median, missing["cuda"])


def _small_products(session: Session, copied: float, missing: str) -> Iterator[Line]:
    """A few bf16 rows times gate and up: what is to read are the weight's codes."""
    outputs, width = 2 * MODEL_SHAPE.intermediate, MODEL_SHAPE.hidden
    if missing:
        yield not_measured("bandwidth", "small products, cuda", missing)
        return
    weight = random_weight((outputs, width), torch.Generator(session.device).manual_seed(0))
    for precision in (Precision.FP8, Precision.NVFP4):
        packed = pack(quantize_weight(weight, precision), session.device)
        for rows in (1, _WINDOW):
            x, out = random_rows(rows, width, session.device), random_rows(rows, outputs, session.device)
            seconds = session.time({"cuda": partial(cuda.small_linear, x, packed, out)})["cuda"]
            rate = seconds.inverse(packed.nbytes)
            yield Line.of(
                "bandwidth",
                f"small products, {rows} rows times {precision}, cuda, share of the copy",
                rate.scaled(1 / copied),
                note=f"{rate.median / _GIGA:.0f} GB/s of weight, {seconds.median * _MICRO:.1f} us",
            )


Arms = dict[str, Callable[[], object]]


def make_codes(rows: int, width: int, form: str, device: torch.device) -> tuple[Operand, int]:
    """Memory for codes in the form that a GPU reads, and its bytes."""
    scale = nvfp4.global_encode_scale(torch.tensor([INPUT_AMAX])).to(device)
    spec = OperandSpec(fp8=True) if form == "fp8" else OperandSpec(nvfp4_encode_scale=scale, swizzles=True)
    operand = spec.allocate(rows, width, torch.bfloat16, device)
    parts = (operand.fp8, operand.fp8_scale, operand.nvfp4, operand.nvfp4_swizzled)
    return operand, sum(part.nbytes for part in parts if part is not None)


def random_rows(rows: int, width: int, device: torch.device, seed: int = 0) -> Tensor:
    """bf16 [rows, width], normal."""
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(rows, width, generator=generator, device=device).bfloat16()


def _silu(device: torch.device, form: str) -> tuple[Arms, int]:
    gate_up = random_rows(_CHUNK, 2 * MODEL_SHAPE.intermediate, device)
    operand, written = make_codes(_CHUNK, MODEL_SHAPE.intermediate, form, device)
    arms: Arms = {
        "cuda": lambda: cuda.silu_mul(gate_up, operand),
        "triton": lambda: silu_mul(gate_up, operand),
    }
    return arms, gate_up.nbytes + written


def _gated(device: torch.device, form: str) -> tuple[Arms, int]:
    width = MODEL_SHAPE.value_heads * MODEL_SHAPE.state_dim
    o, z = (random_rows(_CHUNK, width, device, seed) for seed in (0, 1))
    weight = torch.ones(MODEL_SHAPE.state_dim, device=device)
    operand, written = make_codes(_CHUNK, width, form, device)
    arms: Arms = {
        "cuda": lambda: cuda.gated_rms_norm(o, z, weight, 1e-6, operand),
        "triton": lambda: gated_rms_norm(o, z, weight, 1e-6, operand),
    }
    return arms, o.nbytes + z.nbytes + written


def _plain(device: torch.device, form: str) -> tuple[Arms, int]:
    x = random_rows(_CHUNK, MODEL_SHAPE.hidden, device)
    operand, written = make_codes(_CHUNK, MODEL_SHAPE.hidden, form, device)
    arms: Arms = {"cuda": lambda: cuda.quantize(x, operand), "triton": lambda: quantize(x, operand)}
    return arms, x.nbytes + written


_PRODUCERS = {"SiLU times up": _silu, "gated norm": _gated, "quantization": _plain}


def _missing_triton(op: str) -> str:
    return "" if op in TRITON_OPS else f"{op} has no kernel in Triton"


def products(session: Session) -> Iterator[Line]:
    """The products of a layer and the head in every format, as the engine calls them."""
    name = TARGET_OF.get(session.arch)
    if name is None:
        yield not_measured("products", "all", f"no stated limits of {session.arch}")
        return
    generator = torch.Generator(session.device).manual_seed(0)
    for product in MODEL_SHAPE.products:
        weight = random_weight((product.out_features, product.in_features), generator)
        for rows in (1, _REQUESTS, _REQUESTS * _WINDOW):
            arms = {kind: _product(weight, kind, rows) for kind in FORMATS}
            timed = session.time({str(kind): arm for kind, arm in arms.items()})
            for kind in FORMATS:
                yield _product_line(product.part, weight, rows, kind, timed, TARGETS[name])


def _product(weight: Tensor, precision: Precision, rows: int) -> Callable[[], object]:
    stored: Any = weight if precision is Precision.BF16 else quantize_weight(weight, precision)
    packed = pack(stored, weight.device)
    x = Operand(plain=random_rows(rows, weight.shape[1], weight.device))
    if precision is not Precision.BF16:
        operand, _ = make_codes(rows, weight.shape[1], str(precision), weight.device)
        assert x.plain is not None, "made above"
        quantize(x.plain, operand)
        x = operand
    out = torch.empty(rows, weight.shape[0], dtype=torch.bfloat16, device=weight.device)
    return lambda: linear(x, packed, out)


def _product_line(
    part: str, weight: Tensor, rows: int, precision: Precision, timed: dict[str, Estimate], target: Target
) -> Line:
    seconds, out, width = timed[str(precision)], weight.shape[0], weight.shape[1]
    reading, computing = target.limits_us(out, width, precision, rows)
    share = max(reading, computing) / (seconds.median * _MICRO)
    limit = "weights" if reading >= computing else "compute"
    return Line.of(
        "products",
        f"{part} {out} x {width}, {rows} rows, {precision}",
        seconds.scaled(_MICRO),
        "us",
        gain=timed[str(Precision.BF16)].median / seconds.median,
        note=f"{100 * share:.0f} % of the limit by {limit}",
    )


def states(session: Session) -> Iterator[Line]:
    """Verification with ReplaySSM's records: a layer, 32 requests, windows of 16, CUDA against Triton."""
    what = f"verify and fold of a layer, {_REQUESTS} requests, windows of {_WINDOW}"
    arms, missing = _state_arms(session.device), {"cuda": cuda.missing_reason(session.device)}
    missing["triton"] = _missing_triton("replay_rows")
    for kind in [kind for kind in arms if missing[kind]]:
        yield not_measured("states", f"{what}, {kind}", missing[kind])
        del arms[kind]
    timed = session.time(arms) if arms else {}
    for kind, seconds in timed.items():
        yield Line.of("states", f"{what}, {kind}", seconds.scaled(_MICRO), "us")
    if len(timed) == len(missing):
        gain = timed["triton"].median / timed["cuda"].median
        yield Line.of("states", "CUDA over Triton", gain, at_least=_GDN_GAIN)
    else:
        yield not_measured("states", "CUDA over Triton", "one of the two is missing")


def _state_arms(device: torch.device) -> Arms:
    shape, rows = MODEL_SHAPE, _REQUESTS * _WINDOW
    spec = StateSpec(
        num_layers=1,
        key_heads=shape.key_heads,
        value_heads=shape.value_heads,
        key_dim=shape.state_dim,
        value_dim=shape.state_dim,
        conv_taps=shape.conv_taps,
    )
    pool = ReplayPool(
        spec,
        num_slots=_REQUESTS,
        max_rows=rows,
        window=_WINDOW,
        history=4 * _WINDOW,
        device=device,
        record_dtype=torch.bfloat16,
    )
    # A third of the requests folds, as with 12 of 16 rows kept; records are random.
    generator = torch.Generator(device).manual_seed(0)
    for tensor in (pool.state, pool.u, pool.k):
        tensor.copy_(torch.randn(tensor.shape, generator=generator, device=device).mul_(0.05))
    pool.cursors.write_pos.copy_(torch.arange(_REQUESTS, device=device) % 3 * 12 + 12)
    pool.cursors.flush.copy_((pool.cursors.write_pos + 2 * _WINDOW > pool.cursors.history).int())
    mixed = random_rows(rows, shape.conv_channels, device)
    a, b = (random_rows(rows, shape.value_heads, device, seed) for seed in (2, 3))
    a_log, dt_bias = (torch.ones(shape.value_heads, device=device) for _ in range(2))
    starts = torch.arange(0, rows + 1, _WINDOW, dtype=torch.int32, device=device)
    slots = torch.arange(_REQUESTS, dtype=torch.int32, device=device)
    out = torch.empty(rows, shape.value_heads * shape.state_dim, dtype=torch.bfloat16, device=device)
    args = (mixed, a, b, a_log, dt_bias, pool.records(0), pool.cursors, starts, slots, out, shape.key_heads)
    return {
        "cuda": lambda: cuda.replay_rows(*args, accepted=False),
        "triton": lambda: replay_rows(*args, accepted=False),
    }
