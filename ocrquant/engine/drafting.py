"""Guesses of what comes next, to be verified by the target in one step.

A window is the last known token of a request and some guesses. The target computes all of its rows at once
and chooses a token behind each; guesses count as far as they are what it chose, and its own next token comes
on top. A choice depends on the logits, the request's seed and the token's place alone, so that an answer is
the same with and without guesses, drawn or greedy. Knows requests and counts; knows no tensor.

For drawn answers that is speculative sampling with the exact residual (arXiv 2211.17192, section 2.3, with a
drafter that puts all its weight on its guess x): a draw from the target's p is x with chance p(x), and where
it is not, it is distributed as p without x, scaled to 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ocrquant.engine.plan import Tables
from ocrquant.engine.request import Request

__all__ = ["DraftSource", "NgramDrafts", "num_accepted"]


class DraftSource(Protocol):
    """What guesses.

    Attributes:
        alone: What its slots alone would have guessed, for the requests of the latest call; empty where that
            is the same.
    """

    alone: Sequence[tuple[int, ...]]

    def propose(self, requests: Sequence[Request], most: int, tables: Tables) -> list[tuple[int, ...]]:
        """Guesses for requests whose known tokens are computed but for the last one.

        Args:
            requests: Each with at least one token of its answer, and with room for `most` tokens more.
            most: Most guesses of a request; fewer, or none, are welcome where nothing is known.
            tables: Where their pages are.
        """
        ...


def num_accepted(drafts: Sequence[int], chosen: Sequence[int]) -> int:
    """How many guesses, from the first on, are what the target chose.

    Args:
        drafts: The guesses of a window.
        chosen: The target's choice behind each row of the window, one more than there are guesses.
    """
    count = 0
    for draft, token in zip(drafts, chosen, strict=False):
        if draft != token:
            break
        count += 1
    return count


class NgramDrafts:
    """Guesses that an answer repeats what followed its last tokens when they came before.

    Needs no drafter. Helps where an answer repeats itself, such as the rows of a table.

    Args:
        longest: Tokens that must agree at most; shorter ends are tried where none is found.
        shortest: Tokens that must agree at least.
    """

    alone: Sequence[tuple[int, ...]] = ()

    def __init__(self, longest: int = 6, shortest: int = 3) -> None:
        self._lengths = range(longest, shortest - 1, -1)

    def propose(self, requests: Sequence[Request], most: int, tables: Tables) -> list[tuple[int, ...]]:
        """See `DraftSource`."""
        return [self._continue(request.output_ids, most) for request in requests]

    def _continue(self, known: list[int], most: int) -> tuple[int, ...]:
        for length in self._lengths:
            end = known[-length:]
            if len(end) < length:
                continue
            # The latest place counts: what is near is like what is here.
            for place in range(len(known) - length - 1, -1, -1):
                if known[place : place + length] == end:
                    return tuple(known[place + length : place + length + most])
        return ()
