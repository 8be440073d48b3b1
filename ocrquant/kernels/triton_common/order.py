"""Numbers in order, as Triton device functions: float32 as integers that order alike.

Knows bit patterns; knows no logits.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["LEAST", "largest", "number", "ordered"]

LEAST = tl.constexpr(-(2**31))
"""Below the key of every number, -inf too."""


@triton.jit
def ordered(x):
    """Int32 keys in the order of float32 numbers; the zeros are equal."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def number(key):
    """The float32 number of a key."""
    bits = key.to(tl.int32)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.float32, bitcast=True)


@triton.jit
def largest(keys, tokens, COUNT: tl.constexpr, PADDED: tl.constexpr):
    """The COUNT largest keys by falling key, and the first of equals first.

    Args:
        keys: int32 [n].
        tokens: int32 [n], what belongs to each.
        COUNT: How many.
        PADDED: A power of two, not below.

    Returns:
        int32 [PADDED] keys, `LEAST` behind the last one, and their tokens.
    """
    rank, at = tl.arange(0, PADDED), tl.arange(0, keys.shape[0])
    found, chosen = tl.full([PADDED], LEAST, tl.int32), tl.full([PADDED], 0, tl.int32)
    for i in range(COUNT):
        best, place = tl.max(keys, axis=0, return_indices=True)
        token = tl.sum(tl.where(at == place, tokens, 0), axis=0)
        found, chosen = tl.where(rank == i, best, found), tl.where(rank == i, token, chosen)
        keys = tl.where(at == place, LEAST, keys)
    return found, chosen
