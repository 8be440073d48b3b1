"""What the tests of this folder share."""

from ocrquant.recipe.sections import StatisticsSection

SECTION = StatisticsSection(batch_size=3)
INPUTS = {"pages": "0" * 64}
LAYERS = "model.language_model.layers"


class StoppedError(Exception):
    """Stands for a kill."""
