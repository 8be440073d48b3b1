"""What a process that failed said last. Knows texts."""

from __future__ import annotations

__all__ = ["last_said"]


def last_said(text: str) -> str:
    """The last line of what a process wrote to its error stream."""
    return (text.strip().splitlines() or ["nothing said"])[-1]
