"""The package, its file readers and the help text answer without loading torch."""

import subprocess
import sys

import pytest

HEAVY = {"torch", "triton", "transformers", "datasets", "pandas", "matplotlib", "scipy", "modelopt"}


def heavy_modules_after(code: str) -> set[str]:
    """The heavy libraries that a fresh interpreter has loaded once it has run the code."""
    report = "\nimport sys; print('loaded:', *sorted({name.split('.')[0] for name in sys.modules}))"
    process = subprocess.run([sys.executable, "-c", code + report], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    return HEAVY & set(process.stdout.rsplit("loaded:", 1)[1].split())


@pytest.mark.parametrize(
    "name",
    [
        "ocrquant",
        "ocrquant.env",
        "ocrquant.artifacts",
        "ocrquant.recipe",
        "ocrquant.pages",
        "ocrquant.engine",
        "ocrquant.engine.preparing",
        "ocrquant.run",
    ],
)
def test_import_is_lean(name):
    assert heavy_modules_after(f"import {name}") == set()


def test_reading_a_recipe_is_lean():
    code = "from ocrquant.recipe import load_recipe; load_recipe('recipes/general/quickstart.yaml')"
    assert heavy_modules_after(code) == set()


@pytest.mark.parametrize(
    "arguments", [["--help"], ["calibrate", "--help"], ["run", "--help"], ["bench", "--list"], ["--version"]]
)
def test_help_is_lean(arguments):
    code = f"""
import runpy, sys
sys.argv = ["ocrquant", *{arguments}]
try:
    runpy.run_module("ocrquant", run_name="__main__")
except SystemExit as stop:
    assert not stop.code, stop.code
"""
    assert heavy_modules_after(code) == set()


def test_planted_import_is_seen():
    assert heavy_modules_after("import scipy") == {"scipy"}
