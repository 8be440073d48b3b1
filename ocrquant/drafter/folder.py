"""A drafter on disk: ``config.json`` and ``model.safetensors``, as Hugging Face folders are.

Knows names and files. Refuses a drafter that was made for another target.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from ocrquant.artifacts.atomic import atomic_folder
from ocrquant.drafter.config import DrafterConfig
from ocrquant.drafter.model import DraftModel
from ocrquant.errors import ModelError
from ocrquant.models.drafter.target import require_target

__all__ = ["load_drafter", "require_target", "save_drafter"]

WEIGHTS = "model.safetensors"
ACCEPTANCE = "acceptance.json"


def save_drafter(
    model: DraftModel, folder: Path, acceptance: Mapping[str, Mapping[str, Any]] | None = None
) -> None:
    """Writes a drafter in bf16, as a whole or not at all.

    Args:
        model: The drafter.
        folder: Where it goes.
        acceptance: How it drafts on held-out pages by kind of page and way; ``acceptance.json``.

    Raises:
        OutputError: The folder is not writable or the disk is full.
    """
    tensors = {
        name: p.detach().to("cpu", torch.bfloat16).contiguous() for name, p in model.state_dict().items()
    }
    with atomic_folder(folder) as temporary:
        save_file(tensors, temporary / WEIGHTS, metadata={"format": "pt"})
        (temporary / "config.json").write_text(model.config.render(), encoding="utf-8")
        if acceptance is not None:
            text = json.dumps(acceptance, indent=1) + "\n"
            (temporary / ACCEPTANCE).write_text(text, encoding="utf-8")


def load_drafter(folder: Path, *, dtype: torch.dtype = torch.float32) -> DraftModel:
    """Reads a drafter.

    Args:
        folder: What `save_drafter` wrote.
        dtype: Of its parameters.

    Raises:
        ModelError: A file is missing, or the tensors are not those that the configuration asks for.
    """
    model = DraftModel(DrafterConfig.read(folder / "config.json"))
    try:
        tensors = load_file(folder / WEIGHTS)
        model.load_state_dict(tensors)
    except (OSError, RuntimeError) as error:
        fix = "take a folder that `ocrquant drafter train` wrote"
        raise ModelError(
            folder / WEIGHTS, expected="the weights of the drafter", given=error, fix=fix
        ) from error
    return model.to(dtype).eval()
