"""What a drafter shares with its target: embedding and head, frozen.

Reads tensors of a checkpoint folder; runs no target.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ocrquant.checkpoint import CheckpointReader
from ocrquant.errors import ModelError
from ocrquant.json_files import read_json
from ocrquant.models.drafter.target import EMBEDDINGS, target_digest

__all__ = ["TargetEnds", "read_ends"]

_HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class TargetEnds:
    """The ends of a target.

    Attributes:
        embedding: float32 [vocab, hidden].
        head: float32 [vocab, hidden].
        num_layers: Decoder layers.
        sha256: See `target_digest`.
    """

    embedding: Tensor
    head: Tensor
    num_layers: int
    sha256: str


def read_ends(folder: Path) -> TargetEnds:
    """Reads embedding and head of a target.

    Args:
        folder: The unquantized model, whose head the drafter is trained against.

    Raises:
        ModelError: The folder has no embedding, or its head is quantized.
    """
    config = read_json(folder / "config.json")
    text = config.get("text_config", config)
    with CheckpointReader(folder) as reader:
        name = next((name for name in EMBEDDINGS if name in reader.specs), None)
        if name is None:
            fix = "take a folder with the weights of the model"
            raise ModelError(folder, expected=" or ".join(EMBEDDINGS), given="neither", fix=fix)
        stored = reader.read(name)
        head = reader.read(_HEAD) if _HEAD in reader.specs else stored
    if not head.is_floating_point() or head.shape != stored.shape:
        fix = "train against the model that the plan was made from"
        raise ModelError(_HEAD, expected=f"a head {list(stored.shape)}", given=str(head.dtype), fix=fix)
    layers, sha256 = int(text["num_hidden_layers"]), target_digest(stored, config)
    return TargetEnds(stored.float(), head.float(), layers, sha256)
