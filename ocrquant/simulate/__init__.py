"""Quantized linears inside a Hugging Face model: the arithmetic of a server, on any device.

Knows how a quantized linear and an FP8 cache compute, and how to put them into a model and take them out
again. Does not know which groups exist, how weights were rounded, or what a plan costs.
"""

from __future__ import annotations

from ocrquant.simulate.linear import QuantizedLinear, SimulatedLinear, simulated_output
from ocrquant.simulate.plan import Smoothing, apply_plan
from ocrquant.simulate.rounded import rounded_linears, rounded_smoothing

__all__ = [
    "QuantizedLinear",
    "SimulatedLinear",
    "Smoothing",
    "apply_plan",
    "rounded_linears",
    "rounded_smoothing",
    "simulated_output",
]
