"""What a decode step costs on a machine: times of linears by format, and the traffic of keys and values.

Knows shapes, formats and machines. Knows no model, no score and no torch. A time is either measured
(`CostTable`) or computed from stated peaks (`Target`), and every answer says which.
"""

from ocrquant.cost.step import Load, StepCost, Timing, kv_bytes, products
from ocrquant.cost.table import CostEntry, CostTable
from ocrquant.cost.target import TARGETS, Target

__all__ = [
    "TARGETS",
    "CostEntry",
    "CostTable",
    "Load",
    "StepCost",
    "Target",
    "Timing",
    "kv_bytes",
    "products",
]
