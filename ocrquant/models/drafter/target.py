"""Which model a drafter was made for: a digest of what both share.

Knows bytes and sizes; reads no file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ocrquant.errors import ModelError
from ocrquant.models.drafter.config import DrafterConfig

__all__ = ["EMBEDDINGS", "require_target", "target_digest"]

EMBEDDINGS = ("model.language_model.embed_tokens.weight", "model.embed_tokens.weight")
"""Names of the embedding, by family."""

_SIZES = ("hidden_size", "num_hidden_layers", "vocab_size")


def target_digest(embedding: Tensor, config: Mapping[str, Any]) -> str:
    """Digest of a target's embedding, as stored, and of its sizes.

    Quantization leaves the embedding alone, so a model and all its plans have one digest.

    Args:
        embedding: [vocab, hidden] in the dtype of the file.
        config: ``config.json`` of the target.
    """
    text = config.get("text_config", config)
    sizes = json.dumps([[key, text[key]] for key in _SIZES])
    # Hashed where it lies: of a large vocabulary the bytes are more than a gigabyte.
    digest = hashlib.sha256(embedding.cpu().contiguous().view(torch.uint8).numpy().data)
    digest.update(sizes.encode())
    return digest.hexdigest()


def require_target(config: DrafterConfig, sha256: str, target: object) -> None:
    """Makes sure that a drafter belongs to a target.

    Args:
        config: Of the drafter.
        sha256: Digest of the target; see `target_digest`.
        target: What the error calls it.

    Raises:
        ModelError: It was made for another one.
    """
    if config.target_sha256 != sha256:
        raise ModelError(
            f"drafter for {target}",
            expected=f"one made for the target {sha256[:12]}",
            given=f"one made for {config.target_sha256[:12]}",
            fix="train a drafter for this model: ocrquant drafter train",
        )
