"""``sensitivity.json``: how much each group of linears suffers from each format, and how surely.

Knows rows and their units. Does not know how a score was measured, nor what will be chosen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from ocrquant.artifacts.base import Artifact, FrozenModel
from ocrquant.formats import Precision

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["GroupRecord", "ScoreKind", "Sensitivity", "SensitivityRow"]

ScoreKind = Literal["gradient", "kl"]


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
            same to second order, half the squared product of output gradient and output error.
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
    mean: float
    standard_error: float = Field(ge=0)
    num_pages: int = Field(gt=0)
    num_tokens: int = Field(gt=0)
    bits_per_weight: float = Field(gt=0)
    weight_bytes: int = Field(gt=0)


class Sensitivity(Artifact):
    """All groups and all their scores; bf16 has no row, its score is zero by definition."""

    FILE_NAME: ClassVar[str] = "sensitivity.json"
    STAGE: ClassVar[str] = "sensitivity"

    groups: list[GroupRecord]
    rows: list[SensitivityRow]

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
