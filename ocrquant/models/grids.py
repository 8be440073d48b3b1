"""The grid of patches that an image is cut into: what page processing and the vision towers both speak of."""

from __future__ import annotations

from typing import TypeAlias

__all__ = ["Grid"]

Grid: TypeAlias = tuple[int, int, int]
"""Frames, rows and columns of patches."""
