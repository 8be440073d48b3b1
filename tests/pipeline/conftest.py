"""A recipe small enough for a tiny random model and a handful of shipped crops."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]


@pytest.fixture
def write_recipe(tiny_model_folder: Path, tmp_path: Path) -> Callable[..., Path]:
    """Writes a recipe; keyword arguments replace whole sections."""

    def write(**sections: Any) -> Path:
        recipe = {
            "model": {"path": str(tiny_model_folder)},
            "pages": {
                "source": str(ROOT / "calibration_data"),
                "num_calibration_pages": 5,
                "num_heldout_pages": 3,
                "kinds": ["line"],
            },
            "statistics": {"batch_size": 2},
            "sensitivity": {
                "score": "both",
                "candidates": ["fp8", "nvfp4"],
                "num_pages": 3,
                "batch_size": 2,
            },
            "weights": {"num_held_back_pages": 1},
            "assign": {"budget": {"bits_per_weight": 6.5}},
            "export": {"kv_cache": "fp8"},
            "evaluate": {"max_new_tokens": 6, "batch_size": 2, "num_bootstrap_samples": 100},
            "output": str(tmp_path / "run"),
            **sections,
        }
        path = tmp_path / "recipe.yaml"
        path.write_text(yaml.safe_dump({k: v for k, v in recipe.items() if v is not None}), encoding="utf-8")
        return path

    return write
