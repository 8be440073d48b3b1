"""Writes the chosen plan as a checkpoint that servers load.

Knows the model's structure, the plan and the rounded weights. Does not know why a precision was chosen.
"""

from __future__ import annotations

from ocrquant.export.export import FOLDER_NAME, export_checkpoint, write_checkpoint
from ocrquant.export.tensors import CheckpointTensors

__all__ = ["FOLDER_NAME", "CheckpointTensors", "export_checkpoint", "write_checkpoint"]
