"""What measuring needs before it begins: a place for half-done work, valid for one machine and set of inputs.

Knows what figures depend on. Knows no figure.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import transformers

from ocrquant.adapters.model import DocumentModel
from ocrquant.artifacts import PartialStage, RunFolder, sha256_data
from ocrquant.distributed import Ranks

__all__ = ["RESIDENT_BYTES", "environment", "open_partial"]

RESIDENT_BYTES = 1 << 30
"""Hidden states beyond this go to disk."""


def environment(document: DocumentModel) -> str:
    """What the figures depend on beside the inputs: half a stage from another device is not continued."""
    device = document.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return sha256_data([name, str(document.dtype), torch.__version__, transformers.__version__])


def open_partial(run: RunFolder, stage: str, inputs: Mapping[str, str], here: Ranks) -> PartialStage:
    """Half-done work of a stage, in which the first process clears away what has other inputs.

    Raises:
        OutputError: The folder is not writable.
    """
    if not here.is_first:
        here.wait()
    partial = run.partial(stage, inputs)
    if here.is_first:
        here.wait()
    return partial
