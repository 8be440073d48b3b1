"""The commands `verify` and `inspect` on a checkpoint of the tiny model: sound, spoilt, and by a server."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from ocrquant.cli import app
from ocrquant.export import write_checkpoint
from tests.export.conftest import RoundedModel, round_model

RUNNER = CliRunner()


@pytest.fixture(scope="module")
def model(tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> RoundedModel:
    return round_model(tiny_model_folder, tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def checkpoint(model: RoundedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out") / "checkpoint"
    with model.rounding.open_weights(model.run) as weights:
        write_checkpoint(
            model.source,
            out,
            model_map=model.model_map,
            groups=model.plan("nvfp4", "fp8", "bf16"),
            weights=weights,
            max_shard_bytes=10**9,
        )
    return out


def run(*arguments: object, code: int = 0) -> str:
    result = RUNNER.invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result.stdout


def test_a_sound_checkpoint_passes_with_its_logits(model, checkpoint):
    text = run("verify", checkpoint, "--against", model.source)
    assert "KL from the source on one page" in text
    assert text.endswith("0 errors, 0 warnings, 0 notes\n")


def test_an_error_ends_with_a_code_of_its_own(model, checkpoint, tmp_path):
    folder = tmp_path / "spoilt"
    shutil.copytree(checkpoint, folder)
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith("norm.weight")]:
        tensors[name] = torch.full_like(tensors[name], float("nan"))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    data = json.loads(run("verify", folder, "--against", model.source, "--json", code=32))
    codes = {finding["code"] for finding in data["findings"]}
    assert {"logits-not-finite", "error-too-large", "untouched-changed"} <= codes
    assert data["counts"]["error"] == len([f for f in data["findings"] if f["severity"] == "error"])


def test_logits_that_are_far_off_are_found(model, checkpoint, tmp_path, monkeypatch):
    from ocrquant.pipeline import verification

    monkeypatch.setattr(verification, "MAX_KL", 0.0)
    assert "logits-far-off" in run("verify", checkpoint, "--against", model.source, code=32)


def test_a_server_that_cannot_read_it_is_named(checkpoint):
    assert "target-cannot-serve" in run("verify", checkpoint, "--target", "tensorrt-llm", code=32)
    assert "0 errors" in run("verify", checkpoint, "--target", "vllm")
    run("verify", checkpoint, "--target", "another", code=10)


def test_pages_that_are_none_are_refused(model, checkpoint, tmp_path):
    (tmp_path / "page.png").write_bytes(b"no image")
    run("verify", checkpoint, "--against", model.source, "--page", tmp_path / "page.png", code=16)


def test_inspect_shows_kinds_schemes_and_machines(checkpoint):
    text = run("inspect", checkpoint)
    assert "FP8 by channel, inputs by token" in text
    assert "products are computed in" in text
    data = json.loads(run("inspect", checkpoint, "--json"))
    found = {(row["scheme"], row["machine"]): row["arithmetic"] for row in data["machines"]}
    assert found["NVFP4", "b200"] == "nvfp4"
    assert found["NVFP4", "h200"] == "bf16, weights decoded"
    assert found["FP8 by channel, inputs by token", "h200"] == "fp8"
    kinds = {row["kind"]: row for row in data["kinds"] if row["scheme"] == "NVFP4"}
    assert all(4.5 <= row["bits_per_weight"] < 4.6 for row in kinds.values())


def test_a_page_without_a_source_is_refused(checkpoint, tmp_path):
    result = RUNNER.invoke(app, ["verify", str(checkpoint), "--page", str(tmp_path / "none.png")])
    assert result.exit_code == 10
    assert "--against" in result.output
