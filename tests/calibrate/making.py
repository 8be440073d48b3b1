"""What the tests of this folder share."""

import torch

from ocrquant.calibrate.batching import encode_batch
from ocrquant.recipe.sections import StatisticsSection

SECTION = StatisticsSection(batch_size=3)
INPUTS = {"pages": "0" * 64}
LAYERS = "model.language_model.layers"


class StoppedError(Exception):
    """Stands for a kill."""


def encoded_batches(document, batches):
    """Number of each batch and its tensors."""
    return [(number, encode_batch(document, batch)) for number, batch in enumerate(batches)]


@torch.no_grad()
def forward(document, encoded):
    """An ordinary pass through the whole model."""
    document.logits(encoded)
