"""The stage that measures how much each group of linears suffers from each format.

Works on the Hugging Face model with rounded weights. Knows no budget and chooses nothing.
"""

from ocrquant.sensitivity.measure import measure_sensitivity

__all__ = ["measure_sensitivity"]
