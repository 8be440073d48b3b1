"""What each arm holds and how large it is.

Knows sizes of groups. Does not know how good an arm is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from ocrquant.artifacts import Sensitivity
from ocrquant.formats import FORMATS, Precision

__all__ = ["ArmSize", "arm_size"]


@dataclass(frozen=True, slots=True)
class ArmSize:
    """The searched groups of one arm.

    Attributes:
        num_groups: Groups by precision; precisions that do not occur are left out.
        bits_per_weight: Mean over their weights, block scales included.
        weight_bytes: Bytes on disk, all scales included.
    """

    num_groups: dict[Precision, int]
    bits_per_weight: float
    weight_bytes: int


def arm_size(groups: Mapping[str, Precision], sensitivity: Sensitivity) -> ArmSize:
    """Adds up the groups of an arm; those that `groups` does not name are in bf16."""
    stored = {(row.group, row.precision): row.weight_bytes for row in sensitivity.rows}
    bf16 = FORMATS[Precision.BF16]
    found: Counter[Precision] = Counter()
    bits, num_weights, weight_bytes = 0.0, 0, 0
    for group in sensitivity.groups:
        precision = groups.get(group.name, Precision.BF16)
        found[precision] += 1
        num_weights += group.num_weights
        bits += group.num_weights * FORMATS[precision].bits_per_weight
        if precision is Precision.BF16:
            weight_bytes += group.num_weights * bf16.element_bits // 8
        else:
            weight_bytes += stored[group.name, precision]
    return ArmSize({p: found[p] for p in FORMATS if found[p]}, bits / num_weights, weight_bytes)
