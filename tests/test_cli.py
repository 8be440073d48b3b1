"""Exit codes and one-line errors of the command line, for everything that bad input can be."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image
from typer.testing import CliRunner

from ocrquant.cli import app

RUNNER = CliRunner()
ROOT = Path(__file__).parents[1]


@pytest.fixture
def recipe(tiny_model_folder: Path, tmp_path: Path) -> Callable[..., list[str]]:
    """Arguments of `check` for a small recipe with some values replaced."""

    def build(**values: object) -> list[str]:
        base = {
            "model": {"path": str(tiny_model_folder)},
            "pages": {
                "source": str(ROOT / "calibration_data"),
                "num_calibration_pages": 4,
                "num_heldout_pages": 2,
            },
            "sensitivity": {"candidates": ["fp8", "nvfp4"]},
            "weights": {"num_held_back_pages": 1},
            "assign": {"budget": {"bits_per_weight": 6.5}},
            "output": str(tmp_path / "run"),
        }
        path = tmp_path / "recipe.yaml"
        path.write_text(yaml.safe_dump(base), encoding="utf-8")
        sets = [
            part for key, value in values.items() for part in ("--set", f"{key.replace('__', '.')}={value}")
        ]
        return ["check", str(path), *sets]

    return build


def refused(arguments: list[str], code: int, *words: str) -> None:
    result = RUNNER.invoke(app, arguments)
    assert result.exit_code == code, result.output
    lines = [line for line in result.stderr.splitlines() if line]
    assert len(lines) == 1, lines
    for word in ("error:", *words):
        assert word in lines[0]


def copy_model(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    return target


def test_check_prints_the_plan_of_work_and_writes_nothing(recipe, tmp_path: Path):
    result = RUNNER.invoke(app, recipe())
    assert result.exit_code == 0, result.output
    for word in ("4 decoder layers", "mlp.gate_up", "reachable 4.500 to 16.000", "memory", "disk", "time"):
        assert word in result.output
    assert not (tmp_path / "run").exists()


def test_check_prints_a_budget_in_bytes_in_full(recipe):
    result = RUNNER.invoke(app, recipe(assign__budget="{weight_bytes: 123456789}"))
    assert "weight_bytes 123,456,789;" in result.output


def test_check_refuses_an_output_that_cannot_be_written(recipe, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: not mode & os.W_OK)
    result = RUNNER.invoke(app, recipe())
    assert result.exit_code == 22, result.output
    assert "which cannot" in result.output


@pytest.mark.parametrize(
    ("values", "code", "words"),
    [
        ({"pages__sed": "1"}, 10, ["pages.sed", "seed"]),
        ({"search__keep_bf16": "[layers.9.mlp.down]"}, 11, ["layers.9.mlp.down", "nearest"]),
        ({"search__keep_bf16": "['*visual*']"}, 11, ["visual"]),
        ({"model__path": "/nowhere/model"}, 12, ["/nowhere/model"]),
        ({"pages__source": "/nowhere/pages"}, 16, ["/nowhere/pages"]),
        ({"pages__max_pixels": "10"}, 19, ["10"]),
        ({"assign__budget": "{bits_per_weight: 4.2}"}, 21, ["4.2", "4.5"]),
        ({"assign__budget": "{weight_bytes: 10}"}, 21, ["10"]),
        ({"assign__budget": "{step_us: 10}"}, 10, ["assign.target"]),
        ({"assign": "{budget: {step_us: 0.1}, target: {device: b200}}"}, 21, ["step_us", "0.1"]),
        ({"assign": "{budget: {max_kl: 1}, target: {table: /nowhere/t}}"}, 26, ["/nowhere/t"]),
        ({"assign__limits": "{mlp.dwn: {nvfp4: 0.5}}"}, 11, ["mlp.dwn", "mlp.down"]),
        ({"assign__forbid": "{nvfp4: ['layers.9.*']}"}, 11, ["layers.9.*"]),
        ({"device": "cuda:7"}, 25, ["cuda:7"]),
    ],
)
def test_values_out_of_reach_are_refused_before_any_work(recipe, values, code, words, tmp_path: Path):
    refused(recipe(**values), code, *words)
    assert not (tmp_path / "run").exists()


def test_times_of_a_step_are_foreseen(recipe):
    result = RUNNER.invoke(app, recipe(assign__target="{device: h200, batch: 8, window: 16}"))
    assert result.exit_code == 0, result.output
    lines = [line for line in result.stdout.splitlines() if line.startswith("step ")]
    assert [line.split()[1] for line in lines] == ["bf16", "fp8", "nvfp4", "linears"]
    assert "h200 has no nvfp4 arithmetic" in lines[2]
    assert "8 requests, 16 rows each" in lines[3]
    assert "roofline of h200" in lines[3]


def test_an_unsupported_architecture_is_named(recipe, tiny_model_folder: Path, tmp_path: Path):
    folder = copy_model(tiny_model_folder, tmp_path / "other")
    config = json.loads((folder / "config.json").read_text())
    config["architectures"], config["model_type"] = ["LlamaForCausalLM"], "llama"
    (folder / "config.json").write_text(json.dumps(config))
    refused(recipe(model__path=folder), 12, "LlamaForCausalLM")


def test_a_quantized_model_is_refused(recipe, tiny_model_folder: Path, tmp_path: Path):
    folder = copy_model(tiny_model_folder, tmp_path / "quantized")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "compressed-tensors"}
    (folder / "config.json").write_text(json.dumps(config))
    refused(recipe(model__path=folder), 13, "quantization_config")


def test_a_nan_in_a_weight_is_named(recipe, tiny_model_folder: Path, tmp_path: Path):
    import torch
    from safetensors.torch import load_file, save_file

    folder = copy_model(tiny_model_folder, tmp_path / "nan")
    tensors = load_file(folder / "model.safetensors")
    name = "model.language_model.layers.0.mlp.up_proj.weight"
    tensors[name][3, 5] = torch.nan
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    arguments = recipe(model__path=folder)
    refused_lines = RUNNER.invoke(app, ["calibrate", *arguments[1:], "--until", "statistics"])
    assert refused_lines.exit_code == 14
    assert "layers.0.mlp.up_proj" in refused_lines.stderr.splitlines()[-1]
    assert not (tmp_path / "run" / "statistics.json").exists()


def test_empty_folders_and_broken_images_are_named(recipe, tmp_path: Path):
    pages = tmp_path / "pages"
    pages.mkdir()
    refused(recipe(pages__source=pages), 16, str(pages))
    for i in range(4):
        Image.fromarray(np.full((20, 60), 200, dtype=np.uint8)).save(pages / f"{i}.png")
    (pages / "broken.png").write_bytes(b"not an image")
    refused(recipe(pages__source=pages), 17, "broken.png")


def test_a_single_document_cannot_be_split(recipe, tmp_path: Path):
    pages = tmp_path / "pages"
    pages.mkdir()
    Image.fromarray(np.full((20, 60), 200, dtype=np.uint8)).save(pages / "only.png")
    refused(recipe(pages__source=pages), 20, "two documents", "only.png")


def test_an_output_below_a_file_is_refused(recipe, tmp_path: Path):
    (tmp_path / "file").write_text("")
    refused(recipe(output=tmp_path / "file" / "run"), 22, "file")


def test_a_run_folder_of_another_recipe_is_refused(recipe, tmp_path: Path):
    arguments = recipe()[1:]
    assert RUNNER.invoke(app, ["calibrate", *arguments, "--until", "pages"]).exit_code == 0
    other = ["calibrate", *arguments, "--set", "pages.seed=3", "--until", "pages"]
    result = RUNNER.invoke(app, other)
    assert result.exit_code == 23
    assert "pages.seed" in result.stderr
    assert RUNNER.invoke(app, [*other, "--adopt"]).exit_code == 0


def test_pages_make_names_a_missing_pdf(tmp_path: Path):
    refused(["pages", "make", str(tmp_path / "absent.pdf"), "--out", str(tmp_path / "out")], 16, "absent.pdf")
    assert not (tmp_path / "out").exists()
