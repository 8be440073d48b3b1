"""The compiled convolution against the definition, and that a row's bits depend on its own request only."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

from ocrquant.errors import ShapeError
from ocrquant.kernels.causal_conv import causal_conv
from ocrquant.kernels.causal_conv.reference import causal_conv_reference
from tests.kernels.delta_making import BF16, i32, plain_instructions, same_bits, threads

CHANNELS = 528  # two blocks of 256 and a ragged one


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(BF16)


def check_against_reference() -> None:
    x, weight = random(40, CHANNELS), random(CHANNELS, 4, seed=1)
    tail, wanted_tail = random(5, 3, CHANNELS, seed=2), random(5, 3, CHANNELS, seed=2)
    out, wanted = torch.empty_like(x), torch.empty_like(x)
    where = (i32(0, 1, 3, 6, 33, 40), i32(4, 0, -1, 2, 1), i32(0, 1, 0, 1, 0))
    causal_conv(x, weight, tail, *where, out)
    causal_conv_reference(x, weight, wanted_tail, *where, wanted)
    assert same_bits(tail, wanted_tail)
    # The sums have the same bits; the exponential inside SiLU may differ in its last one.
    torch.testing.assert_close(out, wanted, rtol=2**-7, atol=0)
    assert (out != wanted).float().mean() < 1e-3
    assert not out[3:6].any()


def test_equals_the_reference():
    check_against_reference()


def test_equals_the_reference_without_wide_registers():
    with plain_instructions():
        check_against_reference()


def test_the_plain_build_has_the_same_bits():
    x, weight = random(40, CHANNELS), random(CHANNELS, 4, seed=1)
    x[3, 5], x[20, 100] = float("nan"), float("inf")
    found = []
    for build in (nullcontext, plain_instructions):
        out, tail = torch.empty_like(x), random(1, 3, CHANNELS, seed=2)
        with build():
            causal_conv(x, weight, tail, i32(0, 40), i32(0), i32(0), out)
        found.append(out)
    assert same_bits(*found)


@pytest.mark.parametrize("count", [1, 2])
def test_bits_depend_on_the_request_only(count: int):
    x, weight = random(70, CHANNELS), random(CHANNELS, 4, seed=1)
    alone, tail = torch.empty(64, CHANNELS).to(BF16), torch.empty(1, 3, CHANNELS).to(BF16)
    causal_conv(x[:64], weight, tail, i32(0, 64), i32(0), i32(1), alone)
    pool = torch.full((3, 3, CHANNELS), float("nan")).to(BF16)
    with threads(count):
        for start, stop in ((0, 1), (1, 2), (2, 5), (5, 64)):
            rows = torch.cat([x[64:], x[start:stop]])
            out, fresh = torch.empty_like(rows), i32(1, int(start == 0))
            causal_conv(rows, weight, pool, i32(0, 6, len(rows)), i32(0, 2), fresh, out)
            assert same_bits(out[6:], alone[start:stop])
    assert same_bits(pool[2], tail[0])
    assert pool[1].isnan().all()


def test_rows_may_be_strided_and_recorded():
    wide, weight = random(7, CHANNELS + 64), random(CHANNELS, 4, seed=1)
    x, tail = wide[:, 64:], random(2, 3, CHANNELS, seed=2)
    out, wanted = torch.empty(7, CHANNELS).to(BF16), torch.empty(7, CHANNELS).to(BF16)
    record = torch.zeros(2, 4, CHANNELS).to(BF16)
    before = tail.clone()
    causal_conv(x, weight, tail, i32(3, 7), i32(1), i32(0), out, record)
    causal_conv(x.contiguous(), weight, before.clone(), i32(3, 7), i32(1), i32(0), wanted)
    assert same_bits(out[3:], wanted[3:])
    assert same_bits(tail, before)
    assert same_bits(record[1], x[3:].contiguous())
    assert not record[0].any()


def test_refuses_channels_that_do_not_fill_registers():
    x = random(1, 24)
    with pytest.raises(ShapeError, match="multiple of 16"):
        causal_conv(x, random(24, 4), random(1, 3, 24), i32(0, 1), i32(0), i32(0), torch.empty_like(x))
