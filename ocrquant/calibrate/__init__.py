"""The stages that look at activations: statistics of every searched linear, and the rounding of its weights.

Works on the Hugging Face model through hooks. Knows neither scores nor budgets.
"""

from ocrquant.calibrate.rounding import round_groups
from ocrquant.calibrate.statistics import collect_statistics

__all__ = ["collect_statistics", "round_groups"]
