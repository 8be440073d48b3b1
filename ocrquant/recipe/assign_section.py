"""What a recipe may say of the plan: its budget, the machine behind a time, limits, and swaps.

Knows keys, units and ranges. Does not know which kinds and groups a model has.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from ocrquant.formats import Precision
from ocrquant.recipe.base import Pattern, Section, rule_broken

__all__ = ["AssignSection", "Budget", "CountedCacheSection", "RepairSection", "TargetSection"]


class Budget(Section):
    """What the plan may cost: exactly one of the four.

    Attributes:
        bits_per_weight: Mean over the weights of all groups of the search, those that a pattern settles too;
            block scales are counted, scales of a tensor or channel are not.
        weight_bytes: Bytes of the same groups on disk, all scales included.
        max_kl: Predicted KL divergence from bf16 in nats a token; the smallest plan within it is taken.
        step_us: Microseconds of a decode step on ``assign.target`` that its linears and the reading of keys
            and values take; the rest of a step is the same under every plan and is not counted.
    """

    bits_per_weight: float | None = Field(default=None, gt=0)
    weight_bytes: int | None = Field(default=None, gt=0)
    max_kl: float | None = Field(default=None, gt=0)
    step_us: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        given = [name for name, value in self if value is not None]
        if len(given) != 1:
            expected = "exactly one of " + " | ".join(type(self).model_fields)
            raise rule_broken(expected, " and ".join(given) or "none", "keep one")
        return self

    @property
    def kind(self) -> Literal["bits_per_weight", "weight_bytes", "max_kl", "step_us"]:
        """Name of the limit that is set."""
        if self.bits_per_weight is not None:
            return "bits_per_weight"
        if self.weight_bytes is not None:
            return "weight_bytes"
        return "max_kl" if self.max_kl is not None else "step_us"

    @property
    def value(self) -> float:
        """The limit that is set."""
        return float(getattr(self, self.kind))


class TargetSection(Section):
    """The machine that a decode step is timed for: exactly one of `device` and `table`.

    Attributes:
        device: A machine by its stated limits, see `ocrquant.cost.TARGETS`; times are those of a roofline.
        table: File of ``ocrquant bench cost-table``, relative to the working directory: measured times.
        batch: Requests that are decoded together.
        window: Rows of each request in a step: 1, or the tokens that a speculative step verifies.
        context: Tokens of each request whose keys and values a step reads.
    """

    device: Literal["b200", "h200", "rtx-pro-6000", "cpu"] | None = None
    table: str | None = Field(default=None, min_length=1)
    batch: int = Field(default=1, ge=1)
    window: int = Field(default=1, ge=1)
    context: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.device is None) == (self.table is None):
            given = "none" if self.device is None else "both"
            raise rule_broken("exactly one of device | table", given, "keep one")
        return self


class CountedCacheSection(Section):
    """Keys and values that count in ``weight_bytes`` and ``max_kl`` beside the weights.

    Attributes:
        context: Tokens of each request.
        requests: Requests whose keys and values are in memory together.
    """

    context: int = Field(ge=1)
    requests: int = Field(ge=1)


class RepairSection(Section):
    """Swaps that are tried on the plan as a whole, since a sum of scores knows nothing of interactions.

    Attributes:
        max_measurements: Plans that may be measured, the chosen one included; each takes one pass over the
            scored pages. 0: none, and no model is needed.
    """

    max_measurements: int = Field(default=0, ge=0)


class AssignSection(Section):
    """How the plan is chosen.

    Attributes:
        budget: What it may cost.
        target: The machine behind ``budget.step_us``; with another budget it is only reported.
        counted_cache: Keys and values that count as bytes; without it they do not.
        limits: Kind of group -> format -> largest share of the kind's weights in that format.
        min_bits: Kind of group -> fewest bits a weight, over the kind.
        force: Format -> patterns of groups that get it.
        forbid: Format -> patterns of groups that may not have it.
        repair: Swaps after the search.
    """

    budget: Budget
    target: TargetSection | None = None
    counted_cache: CountedCacheSection | None = None
    limits: dict[str, dict[Precision, Annotated[float, Field(ge=0, le=1)]]] = Field(default_factory=dict)
    min_bits: dict[str, Annotated[float, Field(gt=0, le=16)]] = Field(default_factory=dict)
    force: dict[Precision, list[Pattern]] = Field(default_factory=dict)
    forbid: dict[Precision, list[Pattern]] = Field(default_factory=dict)
    repair: RepairSection = RepairSection()

    @model_validator(mode="after")
    def _keys_agree(self) -> Self:
        if self.budget.kind == "step_us" and self.target is None:
            raise rule_broken("assign.target with assign.budget.step_us", "none", "name a device or a table")
        return self
