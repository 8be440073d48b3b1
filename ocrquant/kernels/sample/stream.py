"""The random numbers of sampling: Philox4x32-10, a counter-based generator (Salmon et al., SC 2011).

A number belongs to (seed, position, purpose) and to nothing else, so a request draws the same numbers alone,
in a batch, after a preemption, and with any number of drafts. Knows integers; knows no logits.
"""

from __future__ import annotations

from enum import IntEnum

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_WORD = 0xFFFFFFFF


class Purpose(IntEnum):
    """What a number is drawn for; each has its own stream."""

    TOKEN = 0
    """A token from the target's distribution, the one after accepted drafts included."""
    ACCEPT = 1
    """Whether a draft is accepted."""
    RESIDUAL = 2
    """A token from what is left of the target's distribution after a rejection."""
    DRAFT = 3
    """A token from the drafter's distribution."""


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Ten rounds of Philox on four 32-bit words; the known answers of Random123 hold."""
    a, b, c, d = counter
    low, high = key
    for _ in range(_ROUNDS):
        first, second = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b, c, d = (second >> 32) ^ b ^ low, second & _WORD, (first >> 32) ^ d ^ high, first & _WORD
        low, high = (low + _WEYL[0]) & _WORD, (high + _WEYL[1]) & _WORD
    return a, b, c, d


def uniform(seed: tuple[int, int], position: int, purpose: Purpose = Purpose.TOKEN) -> float:
    """A number in [0, 1) with 53 random bits.

    Args:
        seed: Two 32-bit words; negative ones count as their two's complement.
        position: Absolute position of the token that is drawn.
        purpose: What the number is for.
    """
    key = (seed[0] & _WORD, seed[1] & _WORD)
    first, second, _, _ = philox4x32((position & _WORD, int(purpose), 0, 0), key)
    return ((first >> 5) * 2.0**26 + (second >> 6)) * 2.0**-53
