"""The pictures of the report, each one call on artefacts, for instance in Jupyter.

``sensitivity_heat_map(Sensitivity.load("runs/mine"))`` gives a matplotlib figure. Knows which pictures
there are.
"""

from __future__ import annotations

from ocrquant.evaluate.front_pictures import pages_behind, pareto_front
from ocrquant.evaluate.layer_pictures import activation_outliers, assignment_strip, sensitivity_heat_map
from ocrquant.evaluate.quality_pictures import cer_differences, quality_against_bits

__all__ = [
    "activation_outliers",
    "assignment_strip",
    "cer_differences",
    "pages_behind",
    "pareto_front",
    "quality_against_bits",
    "sensitivity_heat_map",
]
