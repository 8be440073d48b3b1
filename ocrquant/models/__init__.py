"""The runtime's own definition of a model: paged, batched, written in the ops of ``ocrquant.kernels``.

Knows families, layers, and how the tensors of a checkpoint become packed weights. Does not know files,
requests, schedules, or Hugging Face's model classes.
"""

from __future__ import annotations

from ocrquant.models.spec import AttentionSpec, ModelSpec, StateSpec, VisionSpec
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
