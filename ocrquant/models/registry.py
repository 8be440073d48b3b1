"""From the name of an architecture to the module that builds it, imported only when it is asked for.

Knows names. Does not know families.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

import torch

from ocrquant.errors import ModelError
from ocrquant.models.build import Build
from ocrquant.models.config import Section
from ocrquant.models.decoder import Decoder
from ocrquant.models.layers.linear import Activations
from ocrquant.models.weights import WeightSource

__all__ = ["FAMILIES", "architecture", "build_model"]

FAMILIES: Mapping[str, str] = MappingProxyType(
    {
        "PaddleOCRVLForConditionalGeneration": "ocrquant.models.families.paddleocr_vl",
        "Qwen3_5ForConditionalGeneration": "ocrquant.models.families.qwen3_5",
    }
)
"""Module of each architecture; it has a function ``build``."""


def architecture(config: Mapping[str, Any]) -> str:
    """Name of the architecture of a ``config.json``.

    Raises:
        ModelError: It is none that this package runs.
    """
    names = config.get("architectures") or []
    if not isinstance(names, list) or len(names) != 1 or str(names[0]) not in FAMILIES:
        raise ModelError(
            "architectures in config.json",
            expected=f"a list with one of {', '.join(FAMILIES)}",
            given=names or "none",
            fix="take a model of one of these families",
        )
    return str(names[0])


def build_model(
    config: Mapping[str, Any],
    weights: WeightSource,
    dtype: torch.dtype,
    device: torch.device,
    *,
    activations: Activations = "quantized",
    max_rows: int,
) -> Decoder:
    """A model with its weights packed and its scratch buffers made.

    Args:
        config: ``config.json``. Without a ``vision_config`` the model reads text alone.
        weights: The checkpoint; each of its tensors is taken or left with a reason.
        dtype: Dtype of activations and of unquantized weights.
        device: Where it runs.
        activations: ``quantized``: as the checkpoint asks for each linear. ``plain``: never.
        max_rows: Most rows of a step.

    Raises:
        ModelError: The configuration asks for what is not computed here, or the tensors do not match it: one
            is missing, unexpected or of another shape.
    """
    family = import_module(FAMILIES[architecture(config)])
    build = Build(weights, dtype, device, activations)
    model: Decoder = family.build(Section(config), build)
    build.reader.finish()
    model.reserve(max_rows)
    return model
