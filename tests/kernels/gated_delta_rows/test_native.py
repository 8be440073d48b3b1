"""The compiled rule over rows against the definition, and that bits depend on the own request only."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ocrquant.errors import ShapeError
from ocrquant.kernels.gated_delta_rows import gated_delta_rows
from ocrquant.kernels.gated_delta_rows.reference import gated_delta_rows_reference
from tests.kernels.delta_making import (
    BF16,
    GROUPS,
    HEADS,
    i32,
    plain_instructions,
    rows,
    same_bits,
    some,
    threads,
)

SIZES = [(16, 16), (32, 32), (64, 64), (128, 128), (32, 64), (128, 48)]


def check_against_fp64(key_dim: int, value_dim: int) -> None:
    inputs = rows(23, key_dim, value_dim)
    state = torch.randn(4, HEADS, key_dim, value_dim, generator=torch.Generator().manual_seed(9))
    exact = state.double()
    out, wanted = (torch.empty(23, HEADS * value_dim, dtype=BF16) for _ in range(2))
    where = (i32(0, 1, 3, 6, 23), i32(3, 0, -1, 1), i32(0, 1, 0, 0))
    gated_delta_rows(*inputs, state, *where, out, GROUPS)
    gated_delta_rows_reference(*inputs, exact, *where, wanted, GROUPS)
    torch.testing.assert_close(state.double(), exact, rtol=1e-5, atol=3e-6)
    torch.testing.assert_close(out, wanted, rtol=2**-7, atol=1e-5)
    assert (out != wanted).float().mean() < 2e-3
    assert not out[3:6].any()


@pytest.mark.parametrize(("key_dim", "value_dim"), SIZES)
def test_equals_the_definition(key_dim: int, value_dim: int):
    check_against_fp64(key_dim, value_dim)


def test_equals_the_definition_without_wide_registers():
    with plain_instructions():
        check_against_fp64(64, 64)


@pytest.mark.parametrize("dim", [32, 128])
@pytest.mark.parametrize("count", [1, 2])
def test_bits_depend_on_the_request_only(dim: int, count: int):
    inputs, other = rows(40, dim, dim), rows(6, dim, dim, seed=1)
    alone, state = torch.empty(40, HEADS * dim, dtype=BF16), torch.empty(1, HEADS, dim, dim)
    gated_delta_rows(*inputs, state, i32(0, 40), i32(0), i32(1), alone, GROUPS)
    pool = torch.full((3, HEADS, dim, dim), float("nan"))
    with threads(count):
        for start, stop in ((0, 17), (17, 18), (18, 20), (20, 40)):
            both = [torch.cat([x, y[start:stop]]) for x, y in zip(other[:3], inputs[:3], strict=True)]
            out = torch.empty(len(both[0]), HEADS * dim, dtype=BF16)
            where = (i32(0, 6, len(out)), i32(0, 2), i32(1, int(start == 0)))
            gated_delta_rows(*both, *inputs[3:], pool, *where, out, GROUPS)
            assert same_bits(out[6:], alone[start:stop])
    assert same_bits(pool[2], state[0])
    assert pool[1].isnan().all()


def test_nan_of_padding_and_neighbours_stays_there():
    inputs = rows(6, 32, 32)
    for x in inputs[:3]:
        x[2:4] = float("nan")
    state, alone = torch.ones(3, HEADS, 32, 32), torch.ones(3, HEADS, 32, 32)
    out, wanted = (torch.empty(n, HEADS * 32, dtype=BF16) for n in (6, 2))
    gated_delta_rows(*inputs, state, i32(0, 2, 3, 4, 6), i32(0, -1, 2, 1), i32(0, 1, 0, 0), out, GROUPS)
    gated_delta_rows(*some(inputs, slice(4, 6)), alone, i32(0, 2), i32(1), i32(0), wanted, GROUPS)
    assert same_bits(out[4:], wanted)
    assert not out[2].any()
    assert state[2].isnan().any()
    assert state[:2].isfinite().all()


def test_rows_may_be_strided():
    inputs = rows(5, 32, 32)
    wide: list[Tensor] = [
        torch.cat([torch.full((5, 16), float("nan")).to(BF16), x], 1)[:, 16:] for x in inputs[:3]
    ]
    states, outs = torch.zeros(2, 1, HEADS, 32, 32), torch.empty(2, 5, HEADS * 32, dtype=BF16)
    for source, state, out in ((inputs[:3], states[0], outs[0]), (wide, states[1], outs[1])):
        gated_delta_rows(*source, *inputs[3:], state, i32(0, 5), i32(0), i32(1), out, GROUPS)
    assert same_bits(outs[0], outs[1])


def test_a_wrong_input_is_seen():
    """The comparison above has teeth: a gate that is a little off is far outside its tolerance."""
    inputs = rows(23, 64, 64)
    states, out = torch.zeros(2, 1, HEADS, 64, 64), torch.empty(23, HEADS * 64, dtype=BF16)
    for dt_bias, state in ((inputs[4], states[0]), (inputs[4] + 0.01, states[1])):
        gated_delta_rows(*inputs[:4], dt_bias, state, i32(0, 23), i32(0), i32(1), out, GROUPS)
    assert (states[0] - states[1]).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("name", "message"),
    [("head size", "multiples of 16"), ("columns", "q . k . v"), ("dtype", "float32"), ("out", "columns")],
)
def test_refuses(name: str, message: str):
    dim = 24 if name == "head size" else 32
    mixed, a, b, a_log, dt_bias = rows(1, dim, dim)
    state, out = torch.zeros(1, HEADS, dim, dim), torch.empty(1, HEADS * dim, dtype=BF16)
    mixed = mixed[:, 16:].contiguous() if name == "columns" else mixed
    a_log = a_log.to(BF16) if name == "dtype" else a_log
    out = out[:, 16:].contiguous() if name == "out" else out
    with pytest.raises(ShapeError, match=message):
        gated_delta_rows(mixed, a, b, a_log, dt_bias, state, i32(0, 1), i32(0), i32(0), out, GROUPS)
