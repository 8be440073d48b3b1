"""What a decode step costs on a machine: times of linears by format, and a whole step by its limits.

Knows shapes, formats and machines. Knows no model, no score and no torch. A time is either measured
(`CostTable`) or computed from stated peaks (`Target`), and every answer says which.
"""

from ocrquant.cost.acceptance import Acceptance, ReplayTraffic, replay_traffic
from ocrquant.cost.decode import Decoding, Estimate, StateKind, Term, estimate
from ocrquant.cost.shapes import DRAFTERS, MODELS, PLANS, DrafterShape, ModelShape, Plan, Product
from ocrquant.cost.step import Load, StepCost, Timing, kv_bytes, products
from ocrquant.cost.table import CostEntry, CostTable
from ocrquant.cost.target import TARGETS, Target

__all__ = [
    "DRAFTERS",
    "MODELS",
    "PLANS",
    "TARGETS",
    "Acceptance",
    "CostEntry",
    "CostTable",
    "Decoding",
    "DrafterShape",
    "Estimate",
    "Load",
    "ModelShape",
    "Plan",
    "Product",
    "ReplayTraffic",
    "StateKind",
    "StepCost",
    "Target",
    "Term",
    "Timing",
    "estimate",
    "kv_bytes",
    "products",
    "replay_traffic",
]
