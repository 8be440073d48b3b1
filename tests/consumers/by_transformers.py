"""Reads compressed-tensors folders with ``transformers``; ModelOpt's it would load wrong without a word.

Computes in float32, where compressed-tensors quantizes activations as servers do; see
``tests/export/test_reload.py`` for what remains between the two.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoModelForImageTextToText, CompressedTensorsConfig

from ocrquant.adapters.model import open_model
from tests.consumers.making import Family, Prompt, answers, picture

__all__ = ["read_all"]


def read_all(family: Family, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Reads every compressed-tensors folder in place of vLLM's answers; returns their jobs."""
    mine = [job for job in jobs if "compressed-tensors" in job["name"]]
    if any(".experts." in name for name in family.linears("nvfp4")):
        # What it makes of quantized experts, it makes of damaged ones.
        mine = [job for job in mine if "corruption" not in job]
    for job in mine:
        try:
            save_file(read(family, Path(job["folder"]), job["plan"]), out_file(family, job))
        except Exception as error:  # another program's: what it says goes into the table
            out_file(family, job).with_suffix(".error").write_text(f"{type(error).__name__}: {error}")
    return mine


def out_file(family: Family, job: dict[str, Any]) -> Path:
    """Where the answers to a job are written."""
    folder = family.folder / "transformers"
    folder.mkdir(exist_ok=True)
    return folder / f"{job['name']}.safetensors"


@torch.no_grad()
def read(family: Family, folder: Path, plan: str) -> dict[str, Tensor]:
    """What ``reading.py`` writes, by transformers."""
    model, report = AutoModelForImageTextToText.from_pretrained(
        folder,
        dtype=torch.float32,
        output_loading_info=True,
        quantization_config=CompressedTensorsConfig(dequantize=True),
    )
    for kind in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        if report[kind]:
            raise ValueError(f"{kind}: {min(report[kind])} and {len(report[kind]) - 1} more")
    document = open_model(model.float().eval(), family.document.map, family.folder / "source")
    found: dict[str, Tensor] = {}
    for name, prompt in {"text": Prompt(document, None), "image": Prompt(document, picture())}.items():
        seen: dict[str, Tensor] = {}
        handles = [
            document.linear(linear).register_forward_hook(noting(linear, seen))
            for linear in family.linears(plan)
        ]
        found |= {f"{name}.{what}": tensor for what, tensor in answers(document, prompt).items()}
        for handle in handles:
            handle.remove()
        found |= {f"{name}.linear.{what}": tensor for what, tensor in seen.items()}
    return found


def noting(name: str, seen: dict[str, Tensor]) -> Any:
    """A hook that keeps input and output of the first call."""

    def hook(module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
        seen.setdefault(f"{name}.x", arguments[0].flatten(0, -2).clone())
        seen.setdefault(f"{name}.y", output.flatten(0, -2).clone())

    return hook
