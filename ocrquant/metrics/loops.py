"""When an answer has become one phrase over and over.

Knows token ids and nothing of what they say.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["LOOP_CHECK_EVERY", "LOOP_MAX_PERIOD", "LOOP_TOKENS", "is_loop"]

LOOP_CHECK_EVERY = 16
"""Whoever stops at loops looks whenever an answer has grown by so many tokens, so that all stop alike."""
LOOP_TOKENS = 96
LOOP_MAX_PERIOD = 32


def is_loop(ids: Sequence[int]) -> bool:
    """Whether the last 96 tokens are one phrase of at most 32 tokens over and over."""
    tail = list(ids[-LOOP_TOKENS:])
    if len(tail) < LOOP_TOKENS:
        return False
    last = tail[-1]
    # The last token alone rules out nearly all periods, without a copy of the tail for each.
    return any(
        tail[-1 - period] == last and tail[period:] == tail[:-period]
        for period in range(1, LOOP_MAX_PERIOD + 1)
    )
