"""The runtime's own definition of a model: paged, batched, written in the ops of ``ocrquant.kernels``.

Knows families, layers, and how the tensors of a checkpoint become packed weights. Does not know files,
requests, schedules, or Hugging Face's model classes.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ocrquant.models.spec import AttentionSpec, ModelSpec, StateSpec, VisionSpec

if TYPE_CHECKING:
    from ocrquant.models.step import (
        AttentionMetadata,
        Caches,
        Classes,
        DeltaInputs,
        Model,
        Rows,
        StateLayers,
        StateMetadata,
        Step,
    )

__all__ = [
    "AttentionMetadata",
    "AttentionSpec",
    "Caches",
    "Classes",
    "DeltaInputs",
    "Model",
    "ModelSpec",
    "Rows",
    "StateLayers",
    "StateMetadata",
    "StateSpec",
    "Step",
    "VisionSpec",
]


def __getattr__(name: str) -> Any:
    # A worker process that encodes pages imports this package and must not load torch.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.step"), name)
