"""The walk along a block: by hand, against the drafter's own selector, ties and broken rows."""

import pytest
import torch

from ocrquant.drafter.selector import CandidateSelector
from ocrquant.errors import ShapeError
from ocrquant.kernels.selector_walk import selector_walk
from ocrquant.kernels.selector_walk.reference import selector_walk_reference
from tests.kernels.delta_making import plain_instructions

BF16 = torch.bfloat16
OPS = pytest.mark.parametrize("op", [selector_walk, selector_walk_reference])
NAN, INF = float("nan"), float("inf")


def walk(op, logits, gate, books, tokens, block, top_k):
    found = [torch.full((len(logits),), -9, dtype=torch.int32) for _ in range(2)]
    op(logits, gate, *books, torch.tensor(tokens, dtype=torch.int32), block, top_k, *found)
    return found[0].tolist(), found[1].tolist()


@OPS
def test_by_hand(op):
    # Rank 1: what follows token p gains p's entry times the candidate's.
    books = torch.tensor([[0.0], [1], [0], [2]], dtype=BF16), torch.tensor([[0.0], [0], [1], [3]], dtype=BF16)
    logits = torch.tensor([[9.0, 0, 0, 0], [5, 0, 4.5, 1], [0, 3, 2, 1], [0, 0, 0, 7]])
    gate = torch.ones(4, 1, dtype=BF16)
    # Behind 1: 5, 4.5 + 1 for token 2. Behind 2, whose entry is 0: the largest logit, 1. Then 3.
    assert walk(op, logits, gate, books, [1, 7, 7, 7], 4, 2) == ([1, 2, 1, 3], [1, 0, 1, 3])
    # A gate of zero closes it.
    assert walk(op, logits, 0 * gate, books, [1, 7, 7, 7], 4, 2)[0] == [1, 0, 1, 3]
    # With three candidates the last one of slot 1, 1 + 3, still loses; with a gate of 2 it wins.
    assert walk(op, logits, gate, books, [1, 7, 7, 7], 4, 3)[0][1] == 2
    assert walk(op, logits, 2 * gate, books, [1, 7, 7, 7], 4, 3)[0][1] == 3


@OPS
@pytest.mark.parametrize(
    ("row", "found"),
    [
        ([1.0, 3, 3, 2], 1),  # the lowest index among equals
        ([NAN, -5, NAN, NAN], 1),
        ([-INF, NAN, -INF, -INF], 0),
        ([0.0, INF, 1, INF], 1),
    ],
)
def test_ties_and_broken_rows(op, row, found):
    books = torch.zeros(61, 3, dtype=BF16), torch.zeros(61, 3, dtype=BF16)
    for width in (4, 61):
        # Wider rows end in what never wins.
        logits = torch.tensor([[0.0] * width, row + [-INF] * (width - 4)])
        walked = walk(op, logits, torch.zeros(2, 3, dtype=BF16), [b[:width] for b in books], [0, 0], 2, 3)
        assert walked == ([0, found], [0, found])


@pytest.mark.parametrize(("vocab", "top_k", "rank"), [(320, 16, 64), (1000, 5, 24), (16, 16, 256)])
def test_is_the_selector_of_the_drafter(vocab, top_k, rank):
    torch.manual_seed(1)
    selector = CandidateSelector(vocab, 32, rank, top_k)
    for book in (selector.predecessor_codebook, selector.successor_codebook):
        book.data.normal_(std=rank**-0.25)
    selector = selector.to(BF16).double()
    blocks, block = 6, 8
    hidden = torch.randn(blocks, block, 32).to(BF16).double()
    logits, anchors = torch.randn(blocks, block, vocab), torch.randint(vocab, (blocks,))
    gate = selector.hidden_projection(hidden).to(BF16).flatten(0, 1)
    selector.hidden_projection = torch.nn.Identity()
    expected = selector.walk(logits[:, 1:].double(), gate.double().view(blocks, block, rank)[:, 1:], anchors)
    tokens = torch.zeros(blocks, block)
    tokens[:, 0] = anchors
    books = [b.detach().to(BF16) for b in (selector.predecessor_codebook, selector.successor_codebook)]
    for op in (selector_walk, selector_walk_reference):
        walked, alone = walk(op, logits.flatten(0, 1), gate, books, tokens.flatten().tolist(), block, top_k)
        assert torch.equal(torch.tensor(walked).view(blocks, block)[:, 1:], expected)
        assert torch.equal(torch.tensor(alone).view(blocks, block)[:, 1:], logits[:, 1:].argmax(-1))
    assert not torch.equal(expected, logits[:, 1:].argmax(-1)), "the selector changed nothing"


def _few(generator, shape):
    return torch.randint(0, 4, shape, generator=generator).float()  # more equals than there is room for


def _halves(generator, shape):
    return (torch.randn(shape, generator=generator) * 4).round() / 2


def _broken(generator, shape):
    x = torch.randn(shape, generator=generator)
    x[torch.rand(shape, generator=generator) < 0.5] = NAN
    x[torch.rand(shape, generator=generator) < 0.2] = -INF
    return x


def _zeros_of_both_signs(generator, shape):
    return (
        torch.randint(0, 2, shape, generator=generator).float() * -0.0
        - (torch.rand(shape, generator=generator) < 0.9).float()
    )


@pytest.mark.parametrize("logits_of", [_few, _halves, _broken, _zeros_of_both_signs])
@pytest.mark.parametrize(("vocab", "top_k"), [(320, 16), (320, 17), (37, 9), (3000, 16), (15, 15)])
def test_the_plain_build_walks_the_same_way(logits_of, vocab, top_k):
    generator = torch.Generator().manual_seed(vocab)
    logits = logits_of(generator, (48, vocab))
    gate = torch.randn(48, 24, generator=generator).to(BF16)
    books = [torch.randn(vocab, 24, generator=generator).to(BF16) for _ in range(2)]
    found = walk(selector_walk, logits, gate, books, [3] * 48, 16, top_k)
    with plain_instructions():
        assert walk(selector_walk, logits, gate, books, [3] * 48, 16, top_k) == found


def test_refuses_what_its_contract_excludes():
    logits, gate, book = torch.zeros(4, 8), torch.zeros(4, 3, dtype=BF16), torch.zeros(8, 3, dtype=BF16)
    with pytest.raises(ShapeError, match="top_k: expected 1 to 8, got 9"):
        walk(selector_walk, logits, gate, (book, book), [0] * 4, 2, 9)
    with pytest.raises(ShapeError, match="whole blocks of rows"):
        walk(selector_walk, logits, gate, (book, book), [0] * 4, 3, 2)
