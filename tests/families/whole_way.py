"""A tiny model of each family the whole way, from check to the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import yaml

from ocrquant.pipeline import run_recipe
from ocrquant.recipe import load_recipe
from ocrquant.recipe.sections import ExportSection

FORMATS: tuple[str, ...] = get_args(get_args(ExportSection.model_fields["format"].annotation)[0])
ROOT = Path(__file__).parents[2]


def write_recipe(place: Path, folder: Path, **sections: Any) -> Path:
    """A recipe for seven small crops; keyword arguments replace whole sections."""
    recipe = {
        "model": {"path": str(place)},
        "pages": {
            "source": str(ROOT / "calibration_data"),
            "num_calibration_pages": 4,
            "num_heldout_pages": 2,
            "kinds": ["line"],
        },
        "statistics": {"batch_size": 2},
        "sensitivity": {"score": "both", "candidates": ["fp8", "nvfp4"], "num_pages": 2, "batch_size": 2},
        "weights": {"num_held_back_pages": 1},
        "assign": {"budget": {"bits_per_weight": 6.5}},
        "export": {"kv_cache": "fp8"},
        "evaluate": {"max_new_tokens": 5, "batch_size": 2, "num_bootstrap_samples": 100},
        "output": str(folder / "run"),
        **sections,
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return path


def go_the_whole_way(place: Path, folder: Path, *, adopt: bool = False, **sections: Any) -> Path:
    """Runs every stage that is not up to date; the run folder."""
    return run_recipe(load_recipe(write_recipe(place, folder, **sections)), adopt=adopt)
