"""Writes the chosen plan as a checkpoint that servers load, in the format and within the limits of each.

Knows the model's structure, the plan, the rounded weights and what servers read. Does not know why a
precision was chosen.
"""

from __future__ import annotations

from ocrquant.export.convert import convert_checkpoint
from ocrquant.export.export import FOLDER_NAME, export_checkpoint, export_choices, write_checkpoint
from ocrquant.export.target import Target, check_target
from ocrquant.export.tensors import CheckpointTensors

__all__ = [
    "FOLDER_NAME",
    "CheckpointTensors",
    "Target",
    "check_target",
    "convert_checkpoint",
    "export_checkpoint",
    "export_choices",
    "write_checkpoint",
]
