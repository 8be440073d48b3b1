"""The definition of the convolution: by hand, against Hugging Face's, in chunks, and slots apart."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers.models.qwen3_5.modeling_qwen3_5 import causal_conv1d_fn

from ocrquant.kernels.causal_conv.reference import causal_conv_reference


def i32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def test_by_hand():
    x = torch.tensor([[1.0], [2.0]])
    weight = torch.tensor([[8.0, 4.0, 2.0, 1.0]])  # the oldest input's tap first
    tail = torch.tensor([[[10.0], [20.0], [30.0]]])
    out = torch.empty(2, 1)
    causal_conv_reference(x, weight, tail, i32(0, 2), i32(0), i32(0), out)
    sums = torch.tensor([[80.0 + 80 + 60 + 1], [160.0 + 120 + 2 + 2]])
    assert torch.equal(out, sums * torch.sigmoid(sums))
    assert tail.flatten().tolist() == [30.0, 1.0, 2.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equals_transformers(dtype: torch.dtype):
    torch.manual_seed(0)
    x, weight = torch.randn(37, 192).to(dtype), torch.randn(192, 4).to(dtype)
    tail, out = torch.full((1, 3, 192), float("nan")).to(dtype), torch.empty(37, 192, dtype=dtype)
    causal_conv_reference(x, weight, tail, i32(0, 37), i32(0), i32(1), out)
    wanted = causal_conv1d_fn(x.T[None], weight, None, "silu")[0].T
    if dtype == torch.bfloat16:
        assert torch.equal(out, wanted)
    torch.testing.assert_close(out, wanted)
    assert torch.equal(tail[0], x[-3:])


def test_chunks_and_neighbours_do_not_matter():
    torch.manual_seed(1)
    x, weight = torch.randn(11, 8), torch.randn(8, 4)
    tail, whole = torch.zeros(1, 3, 8), torch.empty(11, 8)
    causal_conv_reference(x, weight, tail, i32(0, 11), i32(0), i32(1), whole)
    parts, other = torch.full((3, 3, 8), float("nan")), torch.full((3, 8), 5.0)
    for start, stop in ((0, 1), (1, 3), (3, 11)):
        rows = torch.cat([other, x[start:stop]])
        out = torch.empty_like(rows)
        fresh = i32(1, int(start == 0))
        causal_conv_reference(rows, weight, parts, i32(0, 3, 3 + stop - start), i32(1, 2), fresh, out)
        assert torch.equal(out[3:], whole[start:stop])
    assert torch.equal(parts[2], tail[0])
    assert parts[0].isnan().all()


def test_record_leaves_the_tail():
    x, weight, tail = torch.randn(3, 8), torch.randn(8, 4), torch.randn(2, 3, 8)
    before, record, out = tail.clone(), torch.zeros(2, 4, 8), torch.empty(3, 8)
    causal_conv_reference(x, weight, tail, i32(0, 3), i32(1), i32(0), out, record)
    assert torch.equal(tail, before)
    assert torch.equal(record[1, :3], x)
    assert not record[0].any()
    assert not record[1, 3].any()


def test_padding_comes_out_as_zeros():
    x, weight, tail = torch.full((2, 8), float("nan")), torch.randn(8, 4), torch.randn(2, 3, 8)
    before, out = tail.clone(), torch.ones(2, 8)
    causal_conv_reference(x, weight, tail, i32(0, 2), i32(-1), i32(0), out)
    assert not out.any()
    assert torch.equal(tail, before)
