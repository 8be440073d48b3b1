"""What the parts of a model are made from: weights, scratch buffers, linears. Knows no part."""

from __future__ import annotations

import torch

from ocrquant.models.layers.linear import Activations, LinearFactory
from ocrquant.models.weights import WeightReader, WeightSource
from ocrquant.models.workspace import Workspace

__all__ = ["Build"]


class Build:
    """What the parts of a model are made from.

    Args:
        weights: The checkpoint.
        dtype: Dtype of activations.
        device: Where everything goes.
        activations: Whether activations are quantized as the checkpoint asks.
    """

    def __init__(
        self, weights: WeightSource, dtype: torch.dtype, device: torch.device, activations: Activations
    ) -> None:
        self.reader = WeightReader(weights, dtype, device)
        self.workspace = Workspace(dtype, device)
        self.linears = LinearFactory(self.reader, self.workspace, activations)
