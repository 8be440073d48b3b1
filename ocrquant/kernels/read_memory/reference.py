"""The exclusive or of words in plain torch."""

from __future__ import annotations

from torch import Tensor


def read_memory_reference(data: Tensor, out: Tensor) -> None:
    """Writes the exclusive or of all words, so that none of them can be left unread.

    Args:
        data: int64 [words].
        out: int64 [1].
    """
    words = data
    out.zero_()
    while len(words) > 1:
        if len(words) % 2:
            out ^= words[-1:]
        half = len(words) // 2
        words = words[:half] ^ words[half : 2 * half]
    if len(words):
        out ^= words
