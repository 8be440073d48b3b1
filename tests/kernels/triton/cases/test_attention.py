"""Attention and what comes before it: rotated heads and caches bit for bit, sums within bf16's noise."""

from __future__ import annotations

import pytest
import torch

from ocrquant.kernels.attention_inputs.reference import attention_inputs_reference
from ocrquant.kernels.attention_inputs.triton import attention_inputs_triton
from ocrquant.kernels.paged_attention import triton as paged_triton
from ocrquant.kernels.paged_attention.reference import paged_attention_reference
from ocrquant.kernels.paged_attention.triton import num_parts, paged_attention_triton
from tests.kernels.attention_inputs.test_attention_inputs import case
from tests.kernels.paged_attention.paged_case import dense, paged
from tests.kernels.producing import bf16_steps
from tests.kernels.triton.cases.making import BF16, DEVICE

BYTE = torch.uint8


def placed(op):
    """The same op on the device of the cases, and its results back where the test can look at them."""

    def call(*arguments, **named):
        moved = [a.to(DEVICE) if isinstance(a, torch.Tensor) else a for a in arguments]
        named = {n: a.to(DEVICE) if isinstance(a, torch.Tensor) else a for n, a in named.items()}
        op(*moved, **named)
        for before, after in zip(arguments, moved, strict=True):
            if isinstance(before, torch.Tensor) and before is not after:
                before.copy_(after)

    return call


@pytest.mark.parametrize("cache", [BF16, BYTE])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize(("head_dim", "rotated"), [(64, 16), (32, 32), (16, 10)])
def test_heads_and_caches_are_those_of_the_definition(cache, norm, head_dim, rotated):
    made = case(rows=7, head_dim=head_dim, rotated=rotated, norm=norm)
    scales = (0.5, 0.25) if cache == BYTE else (1.0, 1.0)
    found = made.run(placed(attention_inputs_triton), cache, *scales)
    expected = made.run(attention_inputs_reference, cache, *scales)
    for got, wanted in zip(found, expected, strict=True):
        if not norm or cache == BYTE:
            # Without a norm nothing is summed; codes hardly ever see the last bit of a norm.
            differs = (got.float() != wanted.float()).float().mean()
            assert differs == 0 if not norm else differs < 0.01
        else:
            assert int(bf16_steps(got, wanted).max()) <= 1
            assert (got == wanted).float().mean() > 0.99
    values = found[2].view(-1, *found[2].shape[2:])
    assert torch.equal(values, expected[2].view_as(values)), "values are moved, not computed"


CASES = {
    "single rows": ([1, 17, 40, 3], [1, 1, 1, 1], {}),
    "windows": ([20, 6, 33], [4, 4, 4], {}),
    "ragged, and a request without rows": ([9, 30, 12], [9, 0, 5], {}),
    "rows before the first key": ([2, 5], [4, 5], {}),
    "nobody": ([0, 7], [1, 1], {}),
    "more heads than a group of two": ([25, 8], [3, 1], {"heads": 6, "kv_heads": 2}),
    "one kv head a query head": ([12], [2], {"heads": 2, "kv_heads": 2, "head_dim": 16}),
}


@pytest.mark.parametrize(
    ("causal", "cache", "parts"), [(True, "same", 1), (True, "fp8", 4), (False, "same", 4)]
)
@pytest.mark.parametrize("name", CASES)
def test_attention_is_that_of_float64(monkeypatch, name, causal, cache, parts):
    lengths, rows, sizes = CASES[name]
    if not causal and 0 in lengths:
        lengths = [max(length, 1) for length in lengths]
    monkeypatch.setattr(paged_triton, "num_parts", lambda *sizes: parts)
    made = paged(lengths, rows, **sizes)
    found = made.run(placed(paged_attention_triton), page_size=4, causal=causal, cache=cache)
    for got, wanted in zip(found, dense(made, causal=causal, cache=cache), strict=True):
        assert got.isfinite().all()
        torch.testing.assert_close(got.double(), wanted, rtol=2**-6, atol=2**-7)


@pytest.mark.parametrize("parts", [1, 2])
def test_keys_before_the_first_are_not_seen(monkeypatch, parts):
    monkeypatch.setattr(paged_triton, "num_parts", lambda *sizes: parts)
    q = torch.randn(3, 2, 16, dtype=BF16)
    caches = [torch.randn(4, 4, 1, 16, dtype=BF16) for _ in "kv"]
    table = torch.tensor([[2, 0, 1]], dtype=torch.int32)
    starts, length = torch.tensor([0, 3], dtype=torch.int32), torch.tensor([11], dtype=torch.int32)
    first = torch.tensor([6], dtype=torch.int32)
    outs = [torch.zeros(3, 32, dtype=BF16) for _ in range(2)]
    for op, out in zip((placed(paged_attention_triton), paged_attention_reference), outs, strict=True):
        op(q, *caches, table, starts, length, 0.25, out, False, 1.0, 1.0, first)
    torch.testing.assert_close(*outs, rtol=2**-6, atol=2**-7)


def test_rows_of_nobody_are_left_alone():
    made = paged([5], [2], head_dim=16)
    q = torch.cat([made.queries[0], torch.full((3, 4, 16), torch.nan, dtype=BF16)])
    caches = [torch.zeros(2, 4, 2, 16, dtype=BF16) for _ in "kv"]
    table = torch.tensor([[0, 1]], dtype=torch.int32)
    out = torch.full((5, 64), 9.0, dtype=BF16)
    starts, length = torch.tensor([0, 2], dtype=torch.int32), torch.tensor([5], dtype=torch.int32)
    placed(paged_attention_triton)(q, *caches, table, starts, length, 0.25, out)
    assert (out[:2] == 0).all()
    assert (out[2:] == 9).all()


def test_parts_follow_from_sizes_and_fill_a_gpu():
    assert num_parts(1, 4, 6144) == 16
    assert num_parts(64, 4, 6144) == 2
    assert num_parts(512, 4, 6144) == 1
    assert num_parts(1, 4, 100) == 1
    assert num_parts(1, 1, 1 << 20) == 32
