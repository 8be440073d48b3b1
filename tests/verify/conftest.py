"""Checkpoints of the tiny model in both formats, written by this package, to plant faults into."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ocrquant.artifacts import Assignment
from ocrquant.export import write_checkpoint
from ocrquant.verify import Findings, verify_checkpoint
from tests.export.conftest import RoundedModel, round_model

DEALT = {"mixed": ("nvfp4", "fp8", "bf16"), "fp8": ("fp8",), "nvfp4": ("nvfp4",)}


@dataclass(frozen=True)
class Planted:
    """A copy of a checkpoint that may be spoilt."""

    folder: Path

    def tensors(self, change: Callable[[dict[str, Tensor]], object]) -> None:
        """Changes the tensors of the single file."""
        path = self.folder / "model.safetensors"
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path, metadata={"format": "pt"})

    def json(self, name: str, change: Callable[[dict[str, Any]], object]) -> None:
        """Changes a JSON file."""
        path = self.folder / name
        data = json.loads(path.read_text())
        change(data)
        path.write_text(json.dumps(data))


@pytest.fixture(scope="session")
def rounded(tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> RoundedModel:
    """The tiny model with a draft layer, every group rounded, norms smoothed."""
    source = tmp_path_factory.mktemp("verify") / "source"
    shutil.copytree(tiny_model_folder, source)
    tensors = load_file(source / "model.safetensors")
    torch.manual_seed(1)
    tensors["mtp.layers.0.mlp.up_proj.weight"] = torch.randn(32, 64).to(torch.bfloat16)
    tensors["mtp.norm.weight"] = torch.ones(64, dtype=torch.bfloat16)
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    return round_model(source, source.parent / "run")


@pytest.fixture(scope="session")
def written(rounded: RoundedModel, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Writes a checkpoint by the name of a plan and of a format, once."""
    root = tmp_path_factory.mktemp("written")

    def write(plan: str = "mixed", file_format: str = "compressed-tensors", shard: int = 10**9) -> Path:
        out = root / f"{plan}-{file_format}-{shard}"
        if not out.exists():
            with rounded.rounding.open_weights(rounded.run) as weights:
                write_checkpoint(
                    rounded.source,
                    out,
                    model_map=rounded.model_map,
                    groups=rounded.plan(*DEALT[plan]),
                    weights=weights,
                    kv=rounded.rounding.kv,
                    file_format=file_format,
                    max_shard_bytes=shard,
                )
        return out

    return write


@pytest.fixture
def copy(written: Callable[..., Path], tmp_path: Path) -> Callable[..., Planted]:
    """A checkpoint of one's own."""

    def make(*args: Any, **kwargs: Any) -> Planted:
        shutil.copytree(written(*args, **kwargs), tmp_path / "checkpoint")
        return Planted(tmp_path / "checkpoint")

    return make


@pytest.fixture(scope="session")
def check(rounded: RoundedModel) -> Callable[..., Findings]:
    """Verifies a folder, against its source and a plan where asked to."""

    def verify(folder: Path, *, source: bool = False, plan: str | None = None) -> Findings:
        return verify_checkpoint(
            folder,
            source=rounded.source if source else None,
            plan=None if plan is None else assignment(rounded, *DEALT[plan]),
        )

    return verify


def assignment(rounded: RoundedModel, *precisions: str, cache: str = "fp8") -> Assignment:
    """The plan as an artefact."""
    return Assignment.model_construct(groups=rounded.plan(*precisions), kv_cache=cache)
