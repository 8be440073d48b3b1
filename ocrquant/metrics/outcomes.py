"""What a test of two arms may conclude. Words only, so that whoever stores them imports no mathematics."""

from __future__ import annotations

from typing import Literal

__all__ = ["Outcome"]

Outcome = Literal["equivalent", "better", "worse", "unsettled"]
