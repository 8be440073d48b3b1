"""The recipe of benchmarks that watch a whole run: single lines, two at once, both formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

__all__ = ["line_recipe"]


class LineSettings(Protocol):
    """What the benchmarks let their callers choose."""

    source: Path
    pages: int
    score: Any


def line_recipe(
    settings: LineSettings, model: dict[str, Any], weights: dict[str, Any], output: Path, **assign: Any
) -> dict[str, Any]:
    """A recipe as YAML has it.

    Args:
        settings: Source and number of the pages, and the score.
        model: The section ``model``.
        weights: Which steps of rounding run.
        output: Run folder.
        assign: Keys of the section ``assign`` beside its budget.
    """
    return {
        "model": model,
        "pages": {
            "source": str(settings.source),
            "num_calibration_pages": settings.pages,
            "num_heldout_pages": 1,
            "kinds": ["line"],
        },
        "device": "cpu",
        "statistics": {"batch_size": 2},
        "weights": weights | {"num_held_back_pages": 1},
        "sensitivity": {
            "score": settings.score,
            "candidates": ["fp8", "nvfp4"],
            "num_pages": settings.pages,
            "batch_size": 2,
        },
        "assign": {"budget": {"bits_per_weight": 6.5}, **assign},
        "output": str(output),
    }
