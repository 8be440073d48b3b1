"""Attention over a paged cache against a dense softmax in float64: masks, pages, FP8, empty requests."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from ocrquant.kernels.paged_attention import paged_attention
from ocrquant.kernels.paged_attention.reference import paged_attention_reference
from tests.kernels.paged_attention.paged_case import Paged, dense, paged

OPS = pytest.mark.parametrize("op", [paged_attention, paged_attention_reference])
TOLERANCE = {"rtol": 2.0**-8, "atol": 2.0**-9}
"""One rounding to bf16 of results of order 1, float32 sums before it."""


def close(got, wanted) -> None:
    for one, other in zip(got, wanted, strict=True):
        assert torch.allclose(one.double(), other, **TOLERANCE)


@OPS
@pytest.mark.parametrize("head_dim", [32, 64, 72, 128, 256])
@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (4, 1), (16, 2), (3, 1)])
def test_equals_a_dense_softmax(op, head_dim, heads, kv_heads) -> None:
    case = paged([1, 37, 130, 64], [1, 5, 1, 64], heads=heads, kv_heads=kv_heads, head_dim=head_dim)
    close(case.run(op), dense(case))


@OPS
@pytest.mark.parametrize("cache", ["same", "fp8"])
@pytest.mark.parametrize("causal", [True, False])
def test_masks_and_fp8(op, cache, causal) -> None:
    case = paged([20, 150], [7, 33])
    close(case.run(op, cache=cache, causal=causal), dense(case, cache=cache, causal=causal))


@OPS
@pytest.mark.parametrize("head_dim", [64, 96])
def test_every_code_of_a_single_value(op, head_dim) -> None:
    """One key weighs 1, so that an output is its value, bit for bit."""
    codes = torch.arange(256, dtype=torch.uint8)
    codes[(codes & 0x7F) == 0x7F] = 0  # NaN has a test of its own
    heads = -(-256 // head_dim)
    values = torch.zeros(heads * head_dim, dtype=torch.uint8)
    values[:256] = codes
    cache = values.view(1, 1, heads, head_dim)
    one = torch.tensor([0, 1], dtype=torch.int32)
    out = torch.empty(1, heads * head_dim, dtype=torch.bfloat16)
    q = torch.ones(1, heads, head_dim, dtype=torch.bfloat16)
    op(q, torch.zeros_like(cache), cache, one[:1, None], one, one[1:], 1.0, out)
    assert torch.equal(out[0], values.view(torch.float8_e4m3fn).to(torch.bfloat16))


@OPS
@pytest.mark.parametrize("causal", [True, False])
def test_rows_without_keys_give_zeros(op, causal) -> None:
    case = paged([0, 5, 1, 2], [2, 0, 1, 4])
    got = case.run(op, causal=causal)
    assert (got[0] == 0).all()
    close(got, dense(case, causal=causal))
    if causal:
        assert (got[3][:2] == 0).all()


@OPS
def test_a_long_context(op) -> None:
    case = paged([5000], [3], gain=4.0)
    close(case.run(op), dense(case))


@OPS
def test_large_scores_do_not_overflow(op) -> None:
    case = paged([300], [2], gain=300.0)
    close(case.run(op), dense(case))


@OPS
def test_float64_is_computed_in_float64(op) -> None:
    case = paged([70], [9], dtype=torch.float64)
    for one, other in zip(case.run(op), dense(case), strict=True):
        assert torch.allclose(one, other, rtol=1e-12, atol=1e-12)


@OPS
def test_rows_of_no_request_are_left_alone(op) -> None:
    q = torch.randn(6, 2, 32).bfloat16()
    cache = torch.randn(2, 16, 1, 32).bfloat16()
    out = torch.full((6, 64), 9.0).bfloat16()
    table, starts, length = (torch.tensor(x, dtype=torch.int32) for x in ([[1]], [2, 4], [10]))
    op(q, cache, cache, table, starts, length, 0.2, out)
    assert (out[[0, 1, 4, 5]] == 9).all()
    assert not (out[2:4] == 9).any(dim=1).all()


@OPS
@pytest.mark.parametrize("cache", ["same", "fp8"])
def test_a_nan_that_a_row_sees_shows(op, cache) -> None:
    case = paged([40], [2])
    case.values[0][39] = float("nan")
    assert case.run(op, cache=cache)[0][1].isnan().all()


@OPS
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("firsts", [(0, 0, 0), (21, 600, 9), (40, 16, 0)])
def test_keys_before_the_first_one_are_not_seen(op, causal, firsts) -> None:
    case = paged([40, 700, 9], [2, 16, 5])
    if causal and firsts[0] == 40:
        firsts = (39, 16, 0)  # the first of two rows then sees nothing
    cut = Paged(
        case.queries,
        [k[f:] for k, f in zip(case.keys, firsts, strict=True)],
        [v[f:] for v, f in zip(case.values, firsts, strict=True)],
    )
    got = case.run(partial(op, first_key=torch.tensor(firsts, dtype=torch.int32)), causal=causal)
    # Sums begin at the first key that is seen, wherever it lies in its page: the bits are those of a request
    # that begins there.
    for one, other in zip(got, cut.run(op, causal=causal), strict=True):
        assert torch.equal(one, other)
    close(got, dense(cut, causal=causal))
