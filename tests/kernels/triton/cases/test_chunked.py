"""flash-linear-attention's kernels, in the interpreter or on a GPU, against the definition of the rule."""

import builtins
from importlib import import_module

import pytest
import torch
from triton.runtime import autotuner

from ocrquant.kernels.gated_delta_rows.chunked import gated_delta_rows_chunked
from ocrquant.kernels.gated_delta_rows.reference import gated_delta_rows_reference
from tests.kernels.triton.cases.making import BF16, DEVICE, IS_INTERPRETED, i32, padded, randn


def first_only(begin=autotuner.Autotuner.__init__):
    """Kernels with the first of their configurations: the interpreter has no clock, a GPU takes minutes."""

    def made(self, function, names, configs, *more, **named):
        begin(self, function, names, configs[:1], *more, **named)

    return made


with pytest.MonkeyPatch.context() as patch:
    patch.setattr(autotuner.Autotuner, "__init__", first_only())
    pytest.importorskip("fla.ops.gated_delta_rule")
GROUPS, HEADS = 2, 4
NAN = float("nan")


class Index(int):
    """A number of a loop, as a kernel may convert it."""

    def to(self, kind):
        del kind
        return int(self)


def counted(*limits):
    found = [int(limit.handle.data[0]) if hasattr(limit, "handle") else int(limit) for limit in limits]
    return map(Index, builtins.range(*found))


@pytest.fixture(autouse=True)
def numbers_of_loops(monkeypatch):
    """The interpreter counts loops in numbers of Python, which kernels cannot convert."""
    if IS_INTERPRETED:
        loops = import_module("fla.ops.common.chunk_delta_h")
        monkeypatch.setattr(loops, "range", counted, raising=False)


def rows(count, key_dim, value_dim, dtype):
    mixed = randn(count, 2 * GROUPS * key_dim + HEADS * value_dim, seed=1)
    a, b = randn(count, HEADS, seed=2), randn(count, HEADS, seed=3)
    dt_bias, a_log = randn(HEADS, seed=4).float(), torch.linspace(-4, 1, HEADS, device=DEVICE)
    return (*(padded(x.to(dtype)) for x in (mixed, a, b)), a_log, dt_bias)


def both(inputs, span, key_dim, value_dim, *, slot=2, fresh=0):
    """Outputs and states of our call and of the definition, other rows and slots included."""
    results = []
    count = len(inputs[0])
    for is_ours in (True, False):
        state = randn(4, HEADS, key_dim, value_dim, seed=5).float()
        state[1] = NAN
        if fresh:
            state[slot] = NAN  # of a slot that begins here
        out = torch.full((count, HEADS * value_dim), 7.0, device=DEVICE, dtype=inputs[0].dtype)
        slots, begins, starts = i32(slot), i32(fresh), i32(span.start, span.stop)
        if is_ours:
            gated_delta_rows_chunked(*inputs, state, slots, begins, out, GROUPS, span)
        else:
            gated_delta_rows_reference(*inputs, state, starts, slots, begins, out, GROUPS)
        results.append((out, state))
    return results


@pytest.mark.parametrize(("count", "key_dim", "value_dim"), [(64, 32, 32), (100, 64, 32), (150, 16, 64)])
@pytest.mark.parametrize("fresh", [0, 1])
def test_chunks_are_the_rule_in_float32(count, key_dim, value_dim, fresh):
    """Exact up to the order of sums where nothing is rounded to bf16 on the way."""
    span = slice(3, 3 + count)
    ours, wanted = both(
        rows(count + 5, key_dim, value_dim, torch.float32), span, key_dim, value_dim, fresh=fresh
    )
    tolerance = 1e-5 if IS_INTERPRETED else 1e-2  # tensor cores read float32 as tf32
    for found, expected in zip(ours, wanted, strict=True):
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
    assert (ours[0][:3] == 7).all()
    assert (ours[0][span.stop :] == 7).all()
    assert ours[1][1].isnan().all()


@pytest.mark.skipif(IS_INTERPRETED, reason="the interpreter multiplies bf16 by bf16 as whole numbers")
def test_in_bf16_it_differs_by_the_rounding_of_its_operands():
    span = slice(0, 130)
    ours, wanted = both(rows(130, 64, 64, BF16), span, 64, 64)
    error = (ours[0].float() - wanted[0].float()).norm() / wanted[0].float().norm()
    assert float(error) < 0.01
    live = (ours[1][2] - wanted[1][2]).norm() / wanted[1][2].norm()
    assert float(live) < 0.01


def test_a_slot_of_nobody_gives_zeros_and_changes_nothing():
    inputs, state = rows(64, 32, 32, torch.float32), randn(3, HEADS, 32, 32, seed=5).float()
    before, out = state.clone(), torch.full((64, HEADS * 32), NAN, device=DEVICE)
    gated_delta_rows_chunked(*inputs, state, i32(-1), i32(0), out, GROUPS, slice(0, 64))
    assert not out.any()
    assert torch.equal(state, before)


def test_a_gate_given_as_a_factor_would_be_seen():
    """The teeth of these tests: FlashInfer's rule takes e^g where this one takes g."""
    inputs = rows(64, 32, 32, torch.float32)
    wrong = (inputs[0], -inputs[1], *inputs[2:])
    (ours, _), _ = both(wrong, slice(0, 64), 32, 32)
    _, (wanted, _) = both(inputs, slice(0, 64), 32, 32)
    assert not torch.allclose(ours, wanted, rtol=1e-2, atol=1e-2)
