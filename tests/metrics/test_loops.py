"""Answers that are one phrase over and over."""

import pytest

from ocrquant.metrics.loops import is_loop


@pytest.mark.parametrize(
    ("ids", "looping"),
    [
        ([7] * 96, True),
        ([1, 2, 3] * 32, True),
        ([9, *range(32), *range(32), *range(32)], True),
        ([1, 2, 3] * 31, False),  # too short to tell
        (list(range(96)), False),
        ([*range(33)] * 3, False),  # a phrase longer than 32 tokens
        ([*[1, 2, 3] * 31, 1, 2, 4], False),
        ([*range(50), *[5, 6] * 48], True),
    ],
)
def test_loops(ids, looping):
    assert is_loop(ids) is looping
