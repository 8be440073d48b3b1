"""What a model of Qwen3.5-9B shape launches on a GPU: every kernel in Triton, on tensors without memory.

Wrappers run as they do in a step; `launch.recording` notes what they launch. That they run at all shows that
none of them looks into a tensor on the device, which would stop the host. Knows shapes; knows no compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from ocrquant.kernels.attention_inputs.triton import attention_inputs_triton
from ocrquant.kernels.gated_rms_norm.triton import gated_rms_norm_triton
from ocrquant.kernels.operand import Operand, OperandSpec
from ocrquant.kernels.paged_attention.triton import paged_attention_triton
from ocrquant.kernels.quantize.triton import quantize_triton
from ocrquant.kernels.rms_norm.triton import rms_norm_triton
from ocrquant.kernels.sigmoid_mul.triton import sigmoid_mul_triton
from ocrquant.kernels.silu_mul.triton import silu_mul_triton
from ocrquant.kernels.triton_common.launch import Launch, recording

__all__ = ["CALLS", "recorded"]

ROWS = 32
HIDDEN, INTERMEDIATE = 4096, 12288
HEADS, HEAD_DIM = 16, 256
KEY_HEADS, VALUE_HEADS, STATE_DIM = 16, 32, 128
EPS = 1e-6
META = torch.device("meta")
BF16, F32 = torch.bfloat16, torch.float32


def _empty(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=META)


def _one() -> Tensor:
    return _empty(1, dtype=F32)


def _spec(form: str) -> OperandSpec:
    return {
        "fp8 by token": OperandSpec(fp8=True),
        "fp8 calibrated": OperandSpec(fp8=True, fp8_decode_scale=_one()),
        "nvfp4": OperandSpec(nvfp4_encode_scale=_one(), swizzles=True),
    }[form]


def _out(form: str, width: int) -> Operand:
    return _spec(form).allocate(ROWS, width, BF16, META)


def _quantize(form: str) -> None:
    quantize_triton(_empty(ROWS, HIDDEN), _out(form, HIDDEN))


def _silu_mul(form: str) -> None:
    silu_mul_triton(_empty(ROWS, 2 * INTERMEDIATE), _out(form, INTERMEDIATE))


def _rms_norm(form: str) -> None:
    x, delta = _empty(ROWS, HIDDEN), _empty(ROWS, HIDDEN)
    rms_norm_triton(x, _empty(HIDDEN, dtype=F32), EPS, _out(form, HIDDEN), "unit", delta)


def _gated_rms_norm(form: str) -> None:
    width = VALUE_HEADS * STATE_DIM
    weight = _empty(STATE_DIM, dtype=F32)
    gated_rms_norm_triton(_empty(ROWS, width), _empty(ROWS, width), weight, EPS, _out(form, width))


def _sigmoid_mul(form: str) -> None:
    width = HEADS * HEAD_DIM
    sigmoid_mul_triton(_empty(ROWS, width), _empty(ROWS, HEADS, 2 * HEAD_DIM), _out(form, width))


_PRODUCERS = {
    "quantize": _quantize,
    "silu_mul": _silu_mul,
    "sigmoid_mul": _sigmoid_mul,
    "rms_norm": _rms_norm,
    "gated_rms_norm": _gated_rms_norm,
}
_FORMS = ("fp8 by token", "fp8 calibrated", "nvfp4")


KV_HEADS, PAGES, PAGE_SIZE, ROTATED = 4, 384, 16, 64


def _cache(form: str) -> Tensor:
    kind = torch.uint8 if form == "coded cache" else BF16
    return _empty(PAGES, PAGE_SIZE, KV_HEADS, HEAD_DIM, dtype=kind)


def _attention_inputs(form: str) -> None:
    width, cos = _empty(HEAD_DIM, dtype=F32), _empty(ROWS, ROTATED // 2, dtype=F32)
    q, k, v = (_empty(ROWS, count, HEAD_DIM) for count in (HEADS, KV_HEADS, KV_HEADS))
    slots = _empty(ROWS, dtype=torch.int32)
    out, caches = _empty(ROWS, HEADS, HEAD_DIM), (_cache(form), _cache(form))
    attention_inputs_triton(q, k, v, width, width, EPS, cos, cos, slots, out, *caches)


def _paged_attention(form: str, rows: int = ROWS) -> None:
    count = _empty(ROWS, dtype=torch.int32)
    q, out = _empty(rows, HEADS, HEAD_DIM), _empty(rows, HEADS * HEAD_DIM)
    table, starts = _empty(ROWS, PAGES, dtype=torch.int32), _empty(ROWS + 1, dtype=torch.int32)
    paged_attention_triton(q, _cache(form), _cache(form), table, starts, count, 0.0625, out)


def _produces(make: Callable[[str], None], form: str) -> Callable[[], None]:
    return lambda: make(form)


CALLS: Mapping[str, Callable[[], None]] = MappingProxyType(
    {f"{op}, {form}": _produces(make, form) for op, make in _PRODUCERS.items() for form in _FORMS}
    | {
        f"{op} {form}": _produces(make, form)
        for op, make in (("attention_inputs", _attention_inputs), ("paged_attention", _paged_attention))
        for form in ("bf16 cache", "coded cache")
    }
    | {"paged_attention windows": lambda: _paged_attention("bf16 cache", ROWS * 16)}
)
"""By what is called: an op, and what it writes."""


def recorded(name: str, arch: int) -> list[Launch]:
    """What one of `CALLS` launches on an architecture."""
    with recording(arch) as launches:
        CALLS[name]()
    return launches
