"""How a weight meets its grid: to nearest, by searched scales, smoothed, and with compensated errors (GPTQ).

Pure functions on tensors. Knows formats and samples of activations; knows no model, no hook and no file.
"""

from ocrquant.rounding.gptq import compensated, inverse_factor
from ocrquant.rounding.layer import (
    LayerInput,
    Methods,
    Norm,
    RoundedGroup,
    RoundedLayer,
    Smoothing,
    Step,
    round_layer,
    round_to_nearest,
)
from ocrquant.rounding.objective import Rows, output_error, quantize_input
from ocrquant.rounding.scales import WeightScales, nearest_scales, searched_scales, stored
from ocrquant.rounding.smoothing import Candidate, candidates, column_magnitude, fold_norm

__all__ = [
    "Candidate",
    "LayerInput",
    "Methods",
    "Norm",
    "RoundedGroup",
    "RoundedLayer",
    "Rows",
    "Smoothing",
    "Step",
    "WeightScales",
    "candidates",
    "column_magnitude",
    "compensated",
    "fold_norm",
    "inverse_factor",
    "nearest_scales",
    "output_error",
    "quantize_input",
    "round_layer",
    "round_to_nearest",
    "searched_scales",
    "stored",
]
