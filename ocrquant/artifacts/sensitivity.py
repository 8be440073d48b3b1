"""``sensitivity.json``: how much each group of linears suffers from each format, and how surely.

Knows rows and their units. Does not know how a score was measured, nor what will be chosen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from ocrquant.artifacts.base import Artifact, FrozenModel
from ocrquant.formats import Precision

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "SCORE_PREFERENCE",
    "GroupRecord",
    "GrowthStep",
    "KvCacheScore",
    "ScoreKind",
    "Sensitivity",
    "SensitivityRow",
]

ScoreKind = Literal["gradient", "kl", "loss", "screened"]

SCORE_PREFERENCE: tuple[ScoreKind, ...] = ("screened", "kl", "loss", "gradient")
"""Which kind a plan follows: the first one that there is."""

_MEASURED: tuple[ScoreKind, ...] = ("kl", "loss")


class GroupRecord(FrozenModel):
    """Linears that must share a precision.

    Attributes:
        name: Name of the group.
        kind: What its linears do, such as ``mlp.down``; see `ocrquant.adapters.LinearInfo`.
        block: Decoder block that holds it; None outside of them.
        linears: Full module names.
        shapes: ``[out_features, in_features]`` of each linear, in their order.
        num_weights: Weights of all its linears.
        precisions: What it may become; a single one where a pattern or its width fixes it.
        reason: Why fewer than all candidates are open to it; empty where none was taken away.
    """

    name: str
    kind: str
    block: int | None
    linears: list[str] = Field(min_length=1)
    shapes: list[tuple[int, int]] = Field(min_length=1)
    num_weights: int = Field(gt=0)
    precisions: list[Precision] = Field(min_length=1)
    reason: str = ""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.shapes) != len(self.linears):
            raise ValueError(
                f"group {self.name!r} has {len(self.linears)} linears, {len(self.shapes)} shapes"
            )
        if sum(rows * columns for rows, columns in self.shapes) != self.num_weights:
            raise ValueError(f"the shapes of group {self.name!r} do not hold {self.num_weights} weights")
        return self


class SensitivityRow(FrozenModel):
    """Score of one group in one format, everything else in bf16.

    Attributes:
        group: Name of the group.
        precision: Format of its weights and activations.
        score: ``kl``: KL divergence from bf16 in nats a token, measured on answer tokens; ``gradient``: the
            same to second order, half the squared product of output gradient and output error;
            ``screened``: the first where it was measured, else the second times what measured ones say that
            it lacks; ``loss``: mean absolute change of a caller's own loss, in the loss's unit.
        is_measured: Whether the group was quantized and its price measured. Stated for ``screened`` rows; the
            other kinds settle it.
        mean: The score, weighted by tokens.
        standard_error: Standard error of the mean over pages.
        num_pages: Pages that it was measured on.
        num_tokens: Answer tokens that it was measured on.
        bits_per_weight: Bits that a weight takes, block scales included.
        weight_bytes: Bytes that the group takes on disk, all scales included.
    """

    group: str
    precision: Precision
    score: ScoreKind
    is_measured: bool
    mean: float
    standard_error: float = Field(ge=0)
    num_pages: int = Field(gt=0)
    num_tokens: int = Field(gt=0)
    bits_per_weight: float = Field(gt=0)
    weight_bytes: int = Field(gt=0)

    @model_validator(mode="before")
    @classmethod
    def _settle(cls, values: Any) -> Any:
        if isinstance(values, dict) and "is_measured" not in values and values.get("score") != "screened":
            return {**values, "is_measured": values.get("score") in _MEASURED}
        return values

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.score != "screened" and self.is_measured != (self.score in _MEASURED):
            raise ValueError(f"a {self.score} score of {self.group!r} with is_measured {self.is_measured}")
        return self


class KvCacheScore(FrozenModel):
    """What a quantized cache of keys and values costs, all linears in bf16.

    Attributes:
        precision: Format of the cache of every full-attention layer.
        score: ``kl``: measured on answer tokens, in nats a token.
        mean: The score, weighted by tokens.
        standard_error: Standard error of the mean over pages.
        num_pages: Pages that it was measured on.
        num_tokens: Answer tokens that it was measured on.
        elements_per_token: Elements of K and V that all these layers keep for a token of a sequence.
    """

    precision: Literal["fp8"]
    score: Literal["kl"] = "kl"
    mean: float
    standard_error: float = Field(ge=0)
    num_pages: int = Field(gt=0)
    num_tokens: int = Field(gt=0)
    elements_per_token: int = Field(gt=0)


class GrowthStep(FrozenModel):
    """Scores on so many pages (gradients, where scores are screened), and how plans from fewer compare.

    Attributes:
        num_pages: Pages scored.
        regret: How much more the plans from the pages before would lose than the present ones, by the present
            scores, as a share of the loss: the largest over a fixed grid of budgets. None at the first step.
        budget: The budget where that was.
    """

    num_pages: int = Field(gt=0)
    regret: float | None = Field(default=None, ge=0)
    budget: str = ""


class Sensitivity(Artifact):
    """All groups and all their scores; bf16 has no row, its score is zero by definition.

    Attributes:
        groups: All searchable groups.
        rows: Their scores.
        kv_cache: Scores of a quantized cache; empty where nothing was measured.
        growth: What was scored with how many pages.
        stopped: Why on no more pages: ``stable``: plans no longer changed; ``limit``: the recipe's limit, or
            all pages there are; ``fixed``: the recipe asked for that number. Empty where nothing grew.
    """

    FILE_NAME: ClassVar[str] = "sensitivity.json"
    SCHEMA_VERSION: ClassVar[int] = 2
    STAGE: ClassVar[str] = "sensitivity"

    groups: list[GroupRecord]
    rows: list[SensitivityRow]
    kv_cache: list[KvCacheScore] = Field(default=[])
    growth: list[GrowthStep] = Field(default=[])
    stopped: Literal["stable", "limit", "fixed", ""] = ""

    @model_validator(mode="after")
    def _check(self) -> Self:
        precisions = {group.name: group.precisions for group in self.groups}
        if len(precisions) != len(self.groups):
            raise ValueError("a group is listed twice")
        seen = set()
        for row in self.rows:
            key = (row.group, row.precision, row.score)
            if row.precision not in precisions.get(row.group, []):
                raise ValueError(f"group {row.group!r} cannot be {row.precision}")
            if key in seen:
                raise ValueError(f"group {row.group!r} has two {row.score} rows for {row.precision}")
            seen.add(key)
        return self

    @property
    def plan_score(self) -> ScoreKind:
        """The kind of score that a plan follows; see `SCORE_PREFERENCE`."""
        present = {row.score for row in self.rows}
        return next((kind for kind in SCORE_PREFERENCE if kind in present), "gradient")

    def to_frame(self) -> pd.DataFrame:
        """One row a group, format and kind of score, with the group's size beside it.

        Returns:
            A frame with the columns of `SensitivityRow` and ``num_weights``, ``num_linears``.
        """
        import pandas as pd

        groups = {group.name: group for group in self.groups}
        return pd.DataFrame(
            [
                row.model_dump(mode="json")
                | {
                    "num_weights": groups[row.group].num_weights,
                    "num_linears": len(groups[row.group].linears),
                }
                for row in self.rows
            ],
            columns=[*SensitivityRow.model_fields, "num_weights", "num_linears"],
        )
