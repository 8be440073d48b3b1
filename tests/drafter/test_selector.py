"""The selector's scores and its walk, by hand."""

import torch

from ocrquant.drafter.selector import CandidateSelector


@torch.no_grad()
def test_the_walk_follows_its_own_choices():
    selector = CandidateSelector(vocab=4, hidden=1, rank=2, top_k=2)
    selector.hidden_projection.weight.fill_(1.0)
    selector.predecessor_codebook.zero_()
    selector.successor_codebook.zero_()
    # Token 3 is liked after token 0, token 2 after token 3.
    selector.predecessor_codebook[0, 0] = selector.successor_codebook[3, 0] = 2.0
    selector.predecessor_codebook[3, 1] = selector.successor_codebook[2, 1] = 2.0
    logits = torch.tensor([[0.0, 9.0, 0.0, 8.0], [0.0, 9.0, 8.0, 0.0]])
    hidden = torch.ones(2, 1)
    assert selector.walk(logits, hidden, torch.tensor(0)).tolist() == [3, 2]
    assert selector.walk(logits, hidden, torch.tensor(1)).tolist() == [1, 1]
    # A closed gate leaves the slots to themselves.
    assert selector.walk(logits, torch.zeros(2, 1), torch.tensor(0)).tolist() == [1, 1]


@torch.no_grad()
def test_scores_of_all_predecessors_at_once():
    selector = CandidateSelector(vocab=7, hidden=3, rank=5, top_k=2)
    hidden = torch.randn(2, 3)
    before, candidates = torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.tensor([[0, 6], [2, 3]])
    found = selector.follow(hidden, before, candidates)
    for slot in range(2):
        gate = selector.hidden_projection(hidden[slot])
        for p, predecessor in enumerate(before[slot]):
            for c, candidate in enumerate(candidates[slot]):
                a, b = selector.predecessor_codebook[predecessor], selector.successor_codebook[candidate]
                torch.testing.assert_close(found[slot, p, c], (a * gate * b).sum())
