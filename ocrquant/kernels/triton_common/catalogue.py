"""What a model of Qwen3.5-9B shape launches on a GPU: every kernel in Triton, on tensors without memory.

Wrappers run as they do in a step; `launch.recording` notes what they launch. That they run at all shows that
none of them looks into a tensor on the device, which would stop the host. Knows shapes; knows no compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor

from ocrquant.kernels.attention_inputs.triton import attention_inputs_triton
from ocrquant.kernels.causal_conv.triton import causal_conv_triton
from ocrquant.kernels.gated_delta_redo.triton import record_window_triton, redo_window_triton
from ocrquant.kernels.gated_delta_rows.triton import gated_delta_rows_triton
from ocrquant.kernels.gated_delta_window.triton import gated_delta_window_triton
from ocrquant.kernels.gated_rms_norm.triton import gated_rms_norm_triton
from ocrquant.kernels.local_convolution.triton import local_convolution_triton
from ocrquant.kernels.operand import Operand, OperandSpec
from ocrquant.kernels.paged_attention.triton import paged_attention_triton
from ocrquant.kernels.quantize.triton import quantize_triton
from ocrquant.kernels.replay.layout import Cursors, Records
from ocrquant.kernels.replay.triton import move_cursors_triton, replay_fold_triton, replay_rows_triton
from ocrquant.kernels.rms_norm.triton import rms_norm_triton
from ocrquant.kernels.sample.triton import sample_triton
from ocrquant.kernels.selector_walk.triton import selector_walk_triton
from ocrquant.kernels.sigmoid_mul.triton import sigmoid_mul_triton
from ocrquant.kernels.silu_mul.triton import silu_mul_triton
from ocrquant.kernels.triton_common.launch import Launch, recording
from ocrquant.kernels.window_commit.triton import commit_state_triton, commit_tail_triton

__all__ = ["CALLS", "recorded"]

ROWS = REQUESTS = 32
SLOTS, WINDOW, HISTORY, LAYERS = 64, 16, 64, 24
HIDDEN, INTERMEDIATE = 4096, 12288
HEADS, HEAD_DIM = 16, 256
KV_HEADS, PAGES, PAGE_SIZE, ROTATED = 4, 384, 16, 64
KEY_HEADS, VALUE_HEADS, STATE_DIM = 16, 32, 128
CHANNELS = (2 * KEY_HEADS + VALUE_HEADS) * STATE_DIM
VOCABULARY = 248320
RANK, TOP_K = 256, 8
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
        "nvfp4 by rows": OperandSpec(nvfp4_encode_scale=_one()),  # where no matrix unit reads tiles
        "plain": OperandSpec(plain=True),
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
_FORMS = ("plain", "fp8 by token", "fp8 calibrated", "nvfp4", "nvfp4 by rows")


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


def _drafts_attention() -> None:
    """Blocks of a drafter: a row sees all of its block, and sliding layers no key before their window."""
    rows, caches = REQUESTS * WINDOW, (_cache("bf16 cache"), _cache("bf16 cache"))
    where = _empty(REQUESTS, PAGES, dtype=torch.int32), *_where()
    out, first = _empty(rows, HEADS * HEAD_DIM), _i32(REQUESTS)
    q = _empty(rows, HEADS, HEAD_DIM)
    paged_attention_triton(q, *caches, *where, 0.0625, out, causal=False, first_key=first)


def _i32(*shape: int) -> Tensor:
    return _empty(*shape, dtype=torch.int32)


def _where() -> tuple[Tensor, Tensor]:
    return _i32(REQUESTS + 1), _i32(REQUESTS)


def _causal_conv(*, is_window: bool) -> None:
    rows = REQUESTS * (WINDOW if is_window else 1)
    tail, record = _empty(SLOTS, 3, CHANNELS), _empty(SLOTS, WINDOW, CHANNELS)
    x, out = _empty(rows, CHANNELS), _empty(rows, CHANNELS)
    fresh = _i32(REQUESTS)
    causal_conv_triton(x, _empty(CHANNELS, 4), tail, *_where(), fresh, out, record if is_window else None)


def _delta_rows(rows: int) -> tuple[Tensor, ...]:
    gates = _empty(rows, VALUE_HEADS), _empty(rows, VALUE_HEADS)
    return _empty(rows, CHANNELS), *gates, _empty(VALUE_HEADS, dtype=F32), _empty(VALUE_HEADS, dtype=F32)


def _state() -> Tensor:
    return _empty(SLOTS, VALUE_HEADS, STATE_DIM, STATE_DIM, dtype=F32)


def _gated_delta_rows() -> None:
    mixed, a, b, a_log, dt_bias = _delta_rows(REQUESTS)
    out = _empty(REQUESTS, VALUE_HEADS * STATE_DIM)
    rest = (*_where(), _i32(REQUESTS), out, KEY_HEADS)
    gated_delta_rows_triton(mixed, a, b, a_log, dt_bias, _state(), *rest)


def _window_records(*lead: int) -> tuple[Tensor, Tensor, Tensor]:
    k, u = (_empty(*lead, SLOTS, WINDOW, VALUE_HEADS, STATE_DIM, dtype=F32) for _ in range(2))
    return k, u, _empty(*lead, SLOTS, WINDOW, VALUE_HEADS, dtype=F32)


def _gated_delta_window() -> None:
    mixed, a, b, a_log, dt_bias = _delta_rows(REQUESTS * WINDOW)
    states = _empty(SLOTS, WINDOW, VALUE_HEADS, STATE_DIM, STATE_DIM, dtype=F32)
    out = _empty(REQUESTS * WINDOW, VALUE_HEADS * STATE_DIM)
    gated_delta_window_triton(mixed, a, b, a_log, dt_bias, _state(), states, *_where(), out, KEY_HEADS)


def _record_window() -> None:
    mixed, a, b, a_log, dt_bias = _delta_rows(REQUESTS * WINDOW)
    out = _empty(REQUESTS * WINDOW, VALUE_HEADS * STATE_DIM)
    record_window_triton(mixed, a, b, a_log, dt_bias, _state(), _window_records(), *_where(), out, KEY_HEADS)


def _redo_window() -> None:
    state = _empty(LAYERS, SLOTS, VALUE_HEADS, STATE_DIM, STATE_DIM, dtype=F32)
    redo_window_triton(state, _window_records(LAYERS), _i32(REQUESTS), _i32(REQUESTS))


def _replay() -> tuple[Records, Cursors]:
    u = _empty(SLOTS, VALUE_HEADS, HISTORY, STATE_DIM)
    k = _empty(SLOTS, KEY_HEADS, HISTORY, STATE_DIM)
    records = Records(_state(), u, k, _empty(SLOTS, VALUE_HEADS, HISTORY, dtype=F32))
    base, write_pos, flush, flushes = (_i32(SLOTS) for _ in range(4))
    return records, Cursors(base, write_pos, flush, flushes, history=HISTORY, window=WINDOW)


def _replay_rows(*, accepted: bool) -> None:
    rows = REQUESTS * (1 if accepted else WINDOW)
    mixed, a, b, a_log, dt_bias = _delta_rows(rows)
    out = _empty(rows, VALUE_HEADS * STATE_DIM)
    kept = (*_replay(), *_where())
    replay_rows_triton(mixed, a, b, a_log, dt_bias, *kept, out, KEY_HEADS, accepted=accepted)


def _replay_fold() -> None:
    replay_fold_triton(*_replay(), _i32(REQUESTS), _i32(REQUESTS))


def _move_cursors() -> None:
    move_cursors_triton(_replay()[1], HISTORY, _i32(REQUESTS), accepted=_i32(REQUESTS))


def _commit_state() -> None:
    states = _empty(LAYERS, SLOTS, WINDOW, VALUE_HEADS, STATE_DIM, STATE_DIM, dtype=F32)
    commit_state_triton(states[:, :, 0], states, _i32(REQUESTS), _i32(REQUESTS))


def _commit_tail() -> None:
    tail, record = _empty(LAYERS, SLOTS, 3, CHANNELS), _empty(LAYERS, SLOTS, WINDOW, CHANNELS)
    commit_tail_triton(tail, record, _i32(REQUESTS), _i32(REQUESTS))


def _sample() -> None:
    logits, one = _empty(REQUESTS, VOCABULARY, dtype=F32), _empty(REQUESTS, dtype=F32)
    sample_triton(logits, one, one, _i32(REQUESTS, 2), _i32(REQUESTS), _i32(REQUESTS), one)


def _selector_walk() -> None:
    rows = REQUESTS * WINDOW
    logits, gate, code = _empty(rows, VOCABULARY, dtype=F32), _empty(rows, RANK), _empty(VOCABULARY, RANK)
    selector_walk_triton(logits, gate, code, code, _i32(rows), WINDOW, TOP_K, _i32(rows), _i32(rows))


def _local_convolution() -> None:
    rows = REQUESTS * WINDOW
    y, out, base = _empty(rows, HIDDEN), _empty(rows, HIDDEN), _empty(2, 2, HIDDEN)
    local_convolution_triton(y, base, _empty(rows, 2, 2, HIDDEN // 16), WINDOW, 1, out)


CALLS: Mapping[str, Callable[[], None]] = MappingProxyType(
    {f"{op}, {form}": partial(make, form) for op, make in _PRODUCERS.items() for form in _FORMS}
    | {
        f"{op}, {form}": partial(make, form)
        for op, make in (("attention_inputs", _attention_inputs), ("paged_attention", _paged_attention))
        for form in ("bf16 cache", "coded cache")
    }
    | {
        "paged_attention, drafts": _drafts_attention,
        "paged_attention, windows": partial(_paged_attention, "bf16 cache", ROWS * WINDOW),
        "causal_conv, a row each": partial(_causal_conv, is_window=False),
        "causal_conv, windows": partial(_causal_conv, is_window=True),
        "gated_delta_rows, a row each": _gated_delta_rows,
        "gated_delta_window": _gated_delta_window,
        "record_window": _record_window,
        "redo_window": _redo_window,
        "replay_rows, a row each": partial(_replay_rows, accepted=True),
        "replay_rows, windows": partial(_replay_rows, accepted=False),
        "replay_fold": _replay_fold,
        "move_cursors": _move_cursors,
        "commit_state": _commit_state,
        "commit_tail": _commit_tail,
        "sample": _sample,
        "selector_walk": _selector_walk,
        "local_convolution": _local_convolution,
    }
)
"""By what is called: an op, and what it writes."""


def recorded(name: str, arch: int) -> list[Launch]:
    """What one of `CALLS` launches on an architecture."""
    with recording(arch) as launches:
        CALLS[name]()
    return launches
