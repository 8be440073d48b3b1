"""What a plan must respect beside its budget: a machine, a cache that counts, limits, settled groups.

Knows the recipe's section. Does not know scores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ocrquant.cost import TARGETS, CostTable, Load, StepCost
from ocrquant.formats import Precision
from ocrquant.recipe.sections import AssignSection, TargetSection

__all__ = ["KV_CACHE", "CachePolicy", "Terms", "terms_of"]

KV_CACHE = "kv_cache"
"""Name under which the format of keys and values stands in a plan beside the groups."""

CachePolicy = Literal["bf16", "fp8", "auto"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Conditions of a search.

    Attributes:
        step: Times of a step; None where nothing is timed.
        kv_cache: Format of keys and values, or ``auto`` where the budget decides.
        counted_tokens: Tokens whose keys and values count as bytes; 0: none do.
        limits: Kind -> format -> largest share of the kind's weights.
        min_bits: Kind -> fewest bits a weight over the kind.
        force: Format -> patterns of groups that get it.
        forbid: Format -> patterns of groups that may not have it.
    """

    step: StepCost | None = None
    kv_cache: CachePolicy = "bf16"
    counted_tokens: int = 0
    limits: Mapping[str, Mapping[Precision, float]] = field(default_factory=dict)
    min_bits: Mapping[str, float] = field(default_factory=dict)
    force: Mapping[Precision, Sequence[str]] = field(default_factory=dict)
    forbid: Mapping[Precision, Sequence[str]] = field(default_factory=dict)


def terms_of(section: AssignSection, kv_cache: CachePolicy = "bf16") -> Terms:
    """The terms that a recipe states; reads its cost table.

    Args:
        section: How the plan is chosen.
        kv_cache: What the checkpoint's keys and values shall be.

    Raises:
        ArtifactError: The cost table is missing or malformed.
    """
    counted = section.counted_cache
    return Terms(
        step=None if section.target is None else _step_cost(section.target),
        kv_cache=kv_cache,
        counted_tokens=0 if counted is None else counted.context * counted.requests,
        limits=section.limits,
        min_bits=section.min_bits,
        force=section.force,
        forbid=section.forbid,
    )


def _step_cost(target: TargetSection) -> StepCost:
    load = Load(batch=target.batch, window=target.window, context=target.context)
    if target.device is not None:
        return StepCost(TARGETS[target.device], load)
    assert target.table is not None, "the schema wants one of the two"
    return StepCost(CostTable.load(target.table), load)
