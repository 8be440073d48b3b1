"""The selector's walk in Triton against its definition, and by hand."""

from __future__ import annotations

import pytest
import torch

from ocrquant.kernels.selection import choices
from ocrquant.kernels.selector_walk import selector_walk
from ocrquant.kernels.selector_walk import triton as kernels
from ocrquant.kernels.selector_walk.reference import selector_walk_reference
from tests.kernels.triton.cases.making import BF16, DEVICE, i32, padded, randn

NAN, INF = float("nan"), float("inf")


def walk(op, logits, gate, predecessor, successor, tokens, block, top_k):
    out, alone = i32(*[-9] * len(logits)), i32(*[-9] * len(logits))
    op(logits, gate, predecessor, successor, tokens, block, top_k, out, alone)
    return out.tolist(), alone.tolist()


@pytest.mark.parametrize(("blocks", "block", "top_k", "rank"), [(2, 4, 3, 8), (1, 3, 8, 20), (2, 1, 1, 4)])
def test_equals_its_definition(monkeypatch, blocks, block, top_k, rank):
    monkeypatch.setattr(kernels, "_MOST_COLUMNS", 32)  # several parts, the last one short
    rows, vocabulary = blocks * block, 77
    logits = randn(rows, vocabulary, seed=1).float()  # of bf16, so that there are ties
    logits[:, 5] = NAN
    gate, codes = padded(randn(rows, rank, seed=2)), randn(vocabulary, rank, seed=3)
    inputs = (logits, gate, codes, randn(vocabulary, rank, seed=4), torch.arange(rows, device=DEVICE).int())
    ours = walk(selector_walk, *inputs, block, top_k)
    assert choices()["selector_walk"].implementation == "triton"
    assert ours == walk(selector_walk_reference, *inputs, block, top_k)


def test_by_hand():
    """Candidates 1 and 3 tie at 2 and the first comes first; behind token 4, only 3 follows well."""
    logits = torch.tensor([[0.0] * 5, [1.0, 2.0, NAN, 2.0, -INF], [-INF] * 5], device=DEVICE)
    gate = torch.ones(3, 4, device=DEVICE).to(BF16)
    predecessor, successor = torch.zeros(2, 5, 4, device=DEVICE).to(BF16)
    inputs = (logits, gate, predecessor, successor, i32(4, 0, 0), 3, 2)
    # Where nothing is above -inf, the lowest index is first.
    assert walk(selector_walk, *inputs) == ([4, 1, 0], [4, 1, 0])
    predecessor[4] = 1
    successor[3] = 0.25
    assert walk(selector_walk, *inputs) == ([4, 3, 0], [4, 1, 0])
