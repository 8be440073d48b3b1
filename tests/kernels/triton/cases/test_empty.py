"""Every op with a kernel in Triton on nothing: no row, no request. What is there stays as it is."""

from __future__ import annotations

import pytest
import torch

from ocrquant.kernels.attention_inputs import attention_inputs
from ocrquant.kernels.causal_conv import causal_conv
from ocrquant.kernels.gated_delta_redo import WindowRecords, record_window, redo_window
from ocrquant.kernels.gated_delta_rows import gated_delta_rows
from ocrquant.kernels.gated_delta_window import gated_delta_window
from ocrquant.kernels.gated_rms_norm import gated_rms_norm
from ocrquant.kernels.local_convolution import local_convolution
from ocrquant.kernels.operand import OperandSpec
from ocrquant.kernels.paged_attention import paged_attention
from ocrquant.kernels.quantize import quantize
from ocrquant.kernels.replay import Cursors, Records, move_cursors, replay_fold, replay_rows
from ocrquant.kernels.rms_norm import rms_norm
from ocrquant.kernels.sample import sample
from ocrquant.kernels.selection import TRITON_OPS, choices
from ocrquant.kernels.selector_walk import selector_walk
from ocrquant.kernels.sigmoid_mul import sigmoid_mul
from ocrquant.kernels.silu_mul import silu_mul
from ocrquant.kernels.window_commit import commit_state, commit_tail
from tests.kernels.triton.cases.making import BF16, DEVICE, ENCODE_SCALE, F32

HEADS, GROUPS, DIM, SLOTS, WINDOW = 4, 2, 16, 3, 2
WIDTH = 2 * GROUPS * DIM + HEADS * DIM
EPS = 1e-6


class Held:
    """Tensors that an op is given, all ones, and whether they are so still."""

    def __init__(self):
        self.tensors = []

    def __call__(self, *shape, dtype=BF16):
        made = torch.ones(shape, device=DEVICE).to(dtype)
        self.tensors.append(made)
        return made

    def i32(self, *shape):
        return self(*shape, dtype=torch.int32)

    def starts(self):
        """q_start of no request: it ends where it begins."""
        return torch.zeros(1, dtype=torch.int32, device=DEVICE)

    def operand(self, width):
        spec = OperandSpec(plain=True, fp8=True, nvfp4_encode_scale=ENCODE_SCALE, swizzles=True)
        return spec.allocate(0, width, BF16, DEVICE)

    def rule(self):
        return self(0, WIDTH), self(0, HEADS), self(0, HEADS), self(HEADS, dtype=F32), self(HEADS, dtype=F32)

    def state(self, *lead):
        return self(*lead, HEADS, DIM, DIM, dtype=F32)

    def records(self, *lead):
        k, u = (self(*lead, SLOTS, WINDOW, HEADS, DIM, dtype=F32) for _ in range(2))
        return WindowRecords(k, u, self(*lead, SLOTS, WINDOW, HEADS, dtype=F32))

    def replay(self):
        u, k = self(SLOTS, HEADS, 4, DIM, dtype=F32), self(SLOTS, GROUPS, 4, DIM, dtype=F32)
        records = Records(self.state(SLOTS), u, k, self(SLOTS, HEADS, 4, dtype=F32))
        return records, Cursors(*(self.i32(SLOTS) for _ in range(4)), history=4, window=WINDOW)


def _attention_inputs(t):
    q, k = t(0, HEADS, DIM), t(0, GROUPS, DIM)
    norm, turn = t(DIM, dtype=F32), t(0, 4, dtype=F32)
    caches = (t(2, 4, GROUPS, DIM), t(2, 4, GROUPS, DIM))
    attention_inputs(q, k, k, norm, norm, EPS, turn, turn, t.i32(0), t(0, HEADS, DIM), *caches)


def _paged_attention(t):
    caches = (t(2, 4, GROUPS, DIM), t(2, 4, GROUPS, DIM))
    out = t(0, HEADS * DIM)
    paged_attention(t(0, HEADS, DIM), *caches, t.i32(0, 2), t.starts(), t.i32(0), 0.25, out)


def _causal_conv(t):
    tail, record = t(SLOTS, 3, 48), t(SLOTS, WINDOW, 48)
    causal_conv(t(0, 48), t(48, 4), tail, t.starts(), t.i32(0), t.i32(0), t(0, 48), record)


def _gated_delta_rows(t):
    where = (t.starts(), t.i32(0), t.i32(0))
    gated_delta_rows(*t.rule(), t.state(SLOTS), *where, t(0, HEADS * DIM), GROUPS)


def _gated_delta_window(t):
    states = (t.state(SLOTS), t.state(SLOTS, WINDOW))
    gated_delta_window(*t.rule(), *states, t.starts(), t.i32(0), t(0, HEADS * DIM), GROUPS)


def _record_window(t):
    where = (t.starts(), t.i32(0), t(0, HEADS * DIM))
    record_window(*t.rule(), t.state(SLOTS), t.records(), *where, GROUPS)


def _replay_rows(t):
    where = (t.starts(), t.i32(0), t(0, HEADS * DIM))
    replay_rows(*t.rule(), *t.replay(), *where, GROUPS, accepted=False)


def _selector_walk(t):
    codes = (t(0, 8), t(20, 8), t(20, 8))
    selector_walk(t(0, 20, dtype=F32), *codes, t.i32(0), 4, 3, t.i32(0), t.i32(0))


def _sample(t):
    one = t(0, dtype=F32)
    sample(t(0, 20, dtype=F32), one, one, t.i32(0, 2), t.i32(0), t.i32(0), t(0, dtype=F32))


CALLS = {
    "quantize": lambda t: quantize(t(0, 64), t.operand(64)),
    "silu_mul": lambda t: silu_mul(t(0, 128), t.operand(64)),
    "sigmoid_mul": lambda t: sigmoid_mul(t(0, 64), t(0, 4, 32), t.operand(64)),
    "rms_norm": lambda t: rms_norm(t(0, 64), t(64, dtype=F32), EPS, t.operand(64), "unit", t(0, 64)),
    "gated_rms_norm": lambda t: gated_rms_norm(t(0, 64), t(0, 64), t(32, dtype=F32), EPS, t.operand(64)),
    "attention_inputs": _attention_inputs,
    "paged_attention": _paged_attention,
    "causal_conv": _causal_conv,
    "gated_delta_rows": _gated_delta_rows,
    "gated_delta_window": _gated_delta_window,
    "record_window": _record_window,
    "redo_window": lambda t: redo_window(t.state(2, SLOTS), t.records(2), t.i32(0), t.i32(0)),
    "replay_rows": _replay_rows,
    "replay_fold": lambda t: replay_fold(*t.replay(), t.i32(0), t.i32(0)),
    "move_cursors": lambda t: move_cursors(t.replay()[1], 4, t.i32(0), accepted=t.i32(0)),
    "commit_state": lambda t: commit_state(t.state(2, SLOTS), t.state(2, SLOTS, WINDOW), t.i32(0), t.i32(0)),
    "commit_tail": lambda t: commit_tail(t(2, SLOTS, 3, 48), t(2, SLOTS, WINDOW, 48), t.i32(0), t.i32(0)),
    "sample": _sample,
    "selector_walk": _selector_walk,
    "local_convolution": lambda t: local_convolution(t(0, 32), t(2, 2, 32), t(0, 2, 2, 2), 4, 0, t(0, 32)),
}


def test_every_op_is_here():
    assert set(CALLS) == set(TRITON_OPS)


@pytest.mark.parametrize("op", CALLS)
def test_nothing_is_computed_and_nothing_changed(op):
    held = Held()
    CALLS[op](held)
    assert choices()[op].implementation == "triton"
    assert held.tensors
    for tensor in held.tensors:
        assert bool((tensor == 1).all())
