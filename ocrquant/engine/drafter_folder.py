"""A drafter's folder as the engine reads it; ``ocrquant.drafter.folder`` writes it.

Refuses a drafter that was made for another target.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file

from ocrquant.engine.config import EngineConfig
from ocrquant.engine.source import StoredWeights
from ocrquant.errors import ModelError
from ocrquant.json_files import read_json
from ocrquant.models.decoder import Decoder
from ocrquant.models.drafter.config import DrafterConfig
from ocrquant.models.drafter.model import Drafter
from ocrquant.models.drafter.target import EMBEDDINGS, require_target, target_digest
from ocrquant.models.weights import MappingSource

__all__ = ["DrafterFolder"]

WEIGHTS = "model.safetensors"
ACCEPTANCE = "acceptance.json"


class DrafterFolder:
    """A drafter on disk.

    Args:
        folder: ``config.json`` and ``model.safetensors``.

    Raises:
        ModelError: There is no such configuration.

    Attributes:
        config: What the drafter is.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.config = DrafterConfig.read(folder / "config.json")

    def require(self, weights: StoredWeights, config: Mapping[str, Any], target: Path) -> None:
        """Makes sure that it belongs to a target.

        Args:
            weights: Tensors of the target.
            config: ``config.json`` of the target.
            target: What an error calls it.

        Raises:
            ModelError: It was made for another one.
        """
        name = next((name for name in EMBEDDINGS if name in weights.names()), None)
        if name is None:
            fix = "take a folder with the weights of the model"
            raise ModelError(target, expected=" or ".join(EMBEDDINGS), given="neither", fix=fix)
        require_target(self.config, target_digest(weights.tensor(name), config), target)

    def survival(self) -> list[float] | None:
        """Chances that the first 1, 2, ... drafts are accepted, as ``acceptance.json`` states them.

        Kinds of pages count by their steps; with the selector where there is one. None without the file.

        Raises:
            ModelError: The file is damaged.
        """
        path = self._folder / ACCEPTANCE
        if not path.is_file():
            return None
        try:
            kinds = [ways.get("selected", ways["unary"]) for ways in read_json(path).values()]
            found = [(max(1, int(kind["steps"])), [float(x) for x in kind["survival"]]) for kind in kinds]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            fix = "take the folder that `ocrquant drafter train` wrote"
            raise ModelError(path, expected="acceptance by kind of page", given=error, fix=fix) from error
        steps = sum(count for count, _ in found)
        columns = zip_longest(*([count * x for x in shares] for count, shares in found), fillvalue=0.0)
        return [sum(column) / steps for column in columns]

    def load(self, target: Decoder, config: EngineConfig) -> Drafter:
        """The drafter with room for an engine's pages.

        Args:
            target: The model; it taps layers for the drafter from now on.
            config: The engine's.

        Raises:
            ModelError: A tensor is missing, unexpected or of another shape, or the file is damaged.
        """
        path = self._folder / WEIGHTS
        try:
            tensors = load_file(path)
        except (OSError, SafetensorError) as error:
            fix = "take a folder that `ocrquant drafter train` wrote"
            raise ModelError(path, expected="the weights of the drafter", given=error, fix=fix) from error
        source = MappingSource(tensors)
        return Drafter(
            self.config, source, target, num_pages=config.drafter_pages, page_size=config.page_size
        )
