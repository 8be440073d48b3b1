"""``report.json``: what the plan costs in accuracy and saves in bytes, and whether that passes the gate.

Knows numbers and their intervals. Does not know how they were measured, nor how they are shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from ocrquant.artifacts.base import Artifact, FrozenModel, Sha256
from ocrquant.artifacts.page_set import PageKind, TruthSource
from ocrquant.formats import Precision

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "ArmName",
    "ArmReport",
    "ChainLink",
    "GateCheck",
    "Interval",
    "PageOutput",
    "Report",
    "TextMetrics",
]

ArmName = Literal["bf16", "fp8", "nvfp4", "plan"]


class Interval(FrozenModel):
    """An estimate with its 95 % interval from a bootstrap that resamples pages."""

    estimate: float
    low: float
    high: float

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.low <= self.high:
            raise ValueError("low must not exceed high")
        return self

    @property
    def includes_zero(self) -> bool:
        """Whether the data cannot tell the estimate from none at all."""
        return self.low <= 0 <= self.high


class TextMetrics(FrozenModel):
    """Quality on some pages; rates are fractions, not per cent.

    Attributes:
        num_pages: Pages counted.
        num_characters: Characters of truth.
        cer: Character errors over characters of truth.
        wer: Word errors over words of truth.
        exact_line_rate: Lines without an error over lines of truth.
        digit_error_rate: Wrong or missing digits over digits of truth; None where the truth has none.
        repetition_loop_rate: Pages whose output ends in a loop over pages.
        mean_kl: KL divergence from bf16 in nats, mean over answer tokens.
        cer_increase: CER less that of bf16 on the same pages; None for bf16 itself.
        wer_increase: Word error rate less that of bf16; None for bf16 itself.
        kl_interval: Interval of `mean_kl`; None for bf16 itself.
    """

    num_pages: int = Field(gt=0)
    num_characters: int = Field(ge=0)
    cer: float = Field(ge=0)
    wer: float = Field(ge=0)
    exact_line_rate: float = Field(ge=0, le=1)
    digit_error_rate: float | None = Field(ge=0)
    repetition_loop_rate: float = Field(ge=0, le=1)
    mean_kl: float
    cer_increase: Interval | None
    wer_increase: Interval | None
    kl_interval: Interval | None


class ArmReport(FrozenModel):
    """One row of the comparison.

    Attributes:
        name: Which plan.
        num_groups: How many groups have each precision.
        bits_per_weight: Over the searched linears.
        weight_bytes: Bytes of the searched linears, scales included.
        checkpoint_bytes: Bytes of the whole checkpoint on disk; None where it was simulated and not written.
        overall: Metrics on all held-out pages.
        by_kind: The same for each kind of page.
    """

    name: ArmName
    num_groups: dict[Precision, int]
    bits_per_weight: float = Field(gt=0)
    weight_bytes: int = Field(gt=0)
    checkpoint_bytes: int | None
    overall: TextMetrics
    by_kind: dict[PageKind, TextMetrics]


class GateCheck(FrozenModel):
    """One threshold of the recipe and what was measured against it.

    Attributes:
        threshold: Its name in the recipe.
        kind: Kind of page that it was measured on; None for all pages.
        limit: Largest value that passes.
        measured: What was measured.
    """

    threshold: str
    kind: PageKind | None
    limit: float
    measured: float

    @property
    def is_passed(self) -> bool:
        """Whether the measured value stays within the limit."""
        return self.measured <= self.limit


class PageOutput(FrozenModel):
    """A page on which the plan did worst against bf16.

    Attributes:
        page: Its id.
        kind: Its kind.
        document: What it was cut from.
        truth: The text to read.
        outputs: What each arm read.
        cer: Its character error rate in each arm.
    """

    page: str
    kind: PageKind
    document: str
    truth: str
    outputs: dict[ArmName, str]
    cer: dict[ArmName, float]


class ChainLink(FrozenModel):
    """An artefact, its digest and those of what it was made from."""

    artifact: str
    sha256: Sha256
    inputs: dict[str, Sha256]


class Report(Artifact):
    """The whole result of a run.

    Attributes:
        model: The model as the recipe names it.
        recipe_sha256: Digest of the resolved recipe.
        truth_sources: Held-out pages by where their truth comes from.
        arms: Rows, bf16 first.
        gate: Every threshold of the recipe; empty where it states none.
        notes: What a reader must know before trusting a number, one sentence each.
        worst_pages: Pages that lost most, worst first.
        chain: Every artefact back to the pages.
    """

    FILE_NAME: ClassVar[str] = "report.json"
    STAGE: ClassVar[str] = "evaluate"

    model: str
    recipe_sha256: Sha256
    truth_sources: dict[TruthSource, int]
    arms: list[ArmReport] = Field(min_length=1)
    gate: list[GateCheck]
    notes: list[str]
    worst_pages: list[PageOutput]
    chain: list[ChainLink]

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [arm.name for arm in self.arms]
        if len(set(names)) != len(names) or names[0] != "bf16":
            raise ValueError("arms must be distinct and begin with bf16")
        return self

    @property
    def is_passed(self) -> bool:
        """Whether every threshold holds."""
        return all(check.is_passed for check in self.gate)

    def to_frame(self) -> pd.DataFrame:
        """One row an arm and kind of page (``all`` for the whole), intervals as ``…_low`` and ``…_high``."""
        import pandas as pd

        rows = []
        for arm in self.arms:
            for kind, metrics in [("all", arm.overall), *sorted(arm.by_kind.items())]:
                row: dict[str, object] = {
                    "arm": arm.name,
                    "kind": kind,
                    "bits_per_weight": arm.bits_per_weight,
                }
                for name, value in metrics:
                    if isinstance(value, Interval):
                        row |= {name: value.estimate, f"{name}_low": value.low, f"{name}_high": value.high}
                    else:
                        row[name] = value
                rows.append(row)
        return pd.DataFrame(rows)
