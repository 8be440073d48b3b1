"""Copies of the tiny model with something changed, the loaded model, and pages of noise."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from ocrquant.adapters import DocumentModel, PageInput, load_model

Edit = Callable[[dict], None]
Change = Callable[..., Path]


@pytest.fixture
def changed(tiny_model_folder: Path, tmp_path: Path) -> Change:
    """A function that copies the tiny model with its config or its tensors edited in place."""

    def change(config: Edit | None = None, tensors: Edit | None = None) -> Path:
        folder = tmp_path / "changed"
        shutil.copytree(tiny_model_folder, folder)
        if config is not None:
            data = json.loads((folder / "config.json").read_text())
            config(data)
            (folder / "config.json").write_text(json.dumps(data))
        if tensors is not None:
            loaded = load_file(folder / "model.safetensors")
            tensors(loaded)
            save_file(loaded, folder / "model.safetensors", metadata={"format": "pt"})
        return folder

    return change


@pytest.fixture(scope="session")
def document_model(tiny_model_folder: Path) -> DocumentModel:
    """The tiny model in fp32, so that comparisons are not about rounding."""
    return load_model(tiny_model_folder, dtype=torch.float32)


def noise_page(
    width: int, height: int = 20, text: str | None = None, kind: str = "line", seed: int = 0
) -> PageInput:
    """A page of random pixels."""
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return PageInput(Image.fromarray(pixels), kind, text, f"{kind}-{width}")
