"""The walk of draft, verify, accept over a known answer."""

import pytest
import torch

from ocrquant.drafter.acceptance import walk


@pytest.mark.parametrize(
    ("drafts", "tokens", "steps"),
    [
        # Answer 5 6 7 8 9 behind a prompt of two; rows are drafts from 5, 6, 7, 8.
        ([[6, 7], [7, 8], [8, 9], [9, 0]], 4, 2),  # all right: 6 7 and 8, then 9
        ([[0, 0], [0, 0], [0, 0], [0, 0]], 4, 4),  # all wrong: the target's own token each time
        ([[6, 0], [7, 8], [8, 9], [9, 0]], 4, 2),  # one right and 7; from 7 both right, the answer ends
        ([[0, 7], [7, 0], [8, 9], [0, 0]], 4, 3),  # a right draft behind a wrong one counts for nothing
    ],
)
def test_walk(drafts, tokens, steps):
    found = walk(torch.tensor([1, 1, 5, 6, 7, 8, 9]), 2, torch.tensor(drafts))
    assert (found.num_tokens, found.num_steps) == (tokens, steps)
    assert found.length == tokens / steps
