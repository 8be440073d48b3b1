"""Text out of tokens as they come: whole characters only, and the strings that end an answer.

Knows bytes; which bytes a token stands for comes from `vocabulary`.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

__all__ = ["TextStream"]

_DECODER = codecs.getincrementaldecoder("utf-8")


class TextStream:
    """The text of one answer.

    Text that could be the beginning of a stop string is held back until it is certain. An invalid sequence
    of bytes becomes the replacement character, as in tokenizers.

    Args:
        stop: Strings that end the text; none is part of it.
        strip_space: Drop one space at the very beginning, for tokenizers that mark the beginning of words.

    Attributes:
        stopped: Whether a stop string came; the text is complete.
    """

    __slots__ = ("_decoder", "_held", "_parts", "_stop", "_strip_space", "stopped")

    def __init__(self, stop: Sequence[str] = (), *, strip_space: bool = False) -> None:
        self._decoder = _DECODER("replace")
        self._stop = tuple(stop)
        self._strip_space = strip_space
        self._held = ""
        self._parts: list[str] = []
        self.stopped = False

    @property
    def text(self) -> str:
        """All text that is certain."""
        return "".join(self._parts)

    def push(self, piece: bytes) -> str:
        """Takes the bytes of the next token, or of several; gives the text that has become certain."""
        assert not self.stopped, "nothing follows a stop string"
        new = self._decoder.decode(piece)
        if self._strip_space and new:
            new, self._strip_space = new.removeprefix(" "), False
        if not self._stop:
            return self._release(new)
        self._held += new
        found = [place for place in map(self._held.find, self._stop) if place >= 0]
        if found:
            self.stopped = True
            certain, self._held = self._held[: min(found)], ""
            return self._release(certain)
        kept = max(_overlap(self._held, stop) for stop in self._stop)
        certain, self._held = self._held[: len(self._held) - kept], self._held[len(self._held) - kept :]
        return self._release(certain)

    def close(self) -> str:
        """Ends the text without a stop string; gives what was held back."""
        if self.stopped:
            return ""
        rest = self._held + self._decoder.decode(b"", final=True)
        self._held = ""
        return self._release(rest)

    def _release(self, text: str) -> str:
        if text:
            self._parts.append(text)
        return text


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of a text that is a beginning of a stop string, but not all of it."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
