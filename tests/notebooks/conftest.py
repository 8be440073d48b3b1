"""A run folder made from the shipped model on a few of the shipped pages, up to the plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from ocrquant.recipe import build_recipe

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def pico_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from ocrquant.pipeline import run_recipe

    folder = tmp_path_factory.mktemp("notebooks") / "run"
    sections = {
        "model": {"path": "pico"},
        "pages": {
            "source": str(ROOT / "calibration_data"),
            "num_calibration_pages": 4,
            "num_heldout_pages": 1,
            "kinds": ["line"],
        },
        "weights": {"smoothing": False, "scale_search": False, "gptq": False},
        "sensitivity": {"score": "screened", "candidates": ["nvfp4", "fp8"], "num_pages": 3, "batch_size": 4},
        "assign": {"budget": {"bits_per_weight": 6.5}},
        "output": str(folder),
    }
    return run_recipe(build_recipe(sections, "a test"), until="assign")
