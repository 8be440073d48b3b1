"""What a half-done stage depends on beyond its inputs: numbers of another device are not continued here."""

from __future__ import annotations

import torch
import transformers

from ocrquant.adapters.model import DocumentModel
from ocrquant.artifacts import sha256_data

__all__ = ["environment_digest"]


def environment_digest(document: DocumentModel) -> str:
    """SHA-256 of the kind of device, the dtype and the versions that activations come from."""
    device = document.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return sha256_data([name, str(document.dtype), torch.__version__, transformers.__version__])
