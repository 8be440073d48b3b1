"""``report.json``: what the plan costs in accuracy and saves in bytes, and whether that passes the gate.

Knows numbers and their intervals. Does not know how they were measured, nor how they are shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import Field, model_validator

from ocrquant.artifacts.base import Artifact, FileRecord, FrozenModel, Sha256
from ocrquant.artifacts.drafts import DraftReport
from ocrquant.artifacts.equivalence import Equivalence
from ocrquant.artifacts.interval import Interval
from ocrquant.artifacts.page_set import PageKind, TruthSource
from ocrquant.artifacts.transcripts import ArmName, RuntimeRecord
from ocrquant.formats import Precision

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "ArmName",
    "ArmReport",
    "ChainLink",
    "Comparison",
    "GateCheck",
    "PageOutput",
    "Report",
    "TextMetrics",
]


class TextMetrics(FrozenModel):
    """Quality on some pages; rates are fractions, not per cent.

    Attributes:
        num_pages: Pages counted.
        num_documents: Documents that they come from.
        num_characters: Characters of truth.
        cer: Character errors over characters of truth.
        wer: Word errors over words of truth.
        exact_line_rate: Lines without an error over lines of truth.
        digit_error_rate: Wrong or missing digits over digits of truth; None where the truth has none.
        num_repetition_loops: Pages whose output ends in a loop while their truth does not.
        num_unfinished: Pages whose output was cut off at the token limit.
        num_empty: Pages whose output is empty while their truth is not.
        num_nonfinite: Pages with NaN or Inf among the logits of their answer; left out of `mean_kl`.
        mean_kl: KL divergence from bf16 in nats, mean over answer tokens; None where no page is left.
        cer_increase: CER less that of bf16 on the same pages; None for bf16 itself.
        wer_increase: Word error rate less that of bf16; None for bf16 itself.
        kl_interval: Interval of `mean_kl`; None for bf16 itself.
        loop_increase: Share of pages with a loop less that of bf16; None for bf16 itself.
        unfinished_increase: The same for outputs that were cut off.
        empty_increase: The same for empty outputs.

    An increase is also None where the truth has nothing to count.
    """

    num_pages: int = Field(gt=0)
    num_documents: int = Field(gt=0)
    num_characters: int = Field(ge=0)
    cer: float = Field(ge=0)
    wer: float = Field(ge=0)
    exact_line_rate: float = Field(ge=0, le=1)
    digit_error_rate: float | None = Field(ge=0)
    num_repetition_loops: int = Field(ge=0)
    num_unfinished: int = Field(ge=0)
    num_empty: int = Field(ge=0)
    num_nonfinite: int = Field(ge=0)
    mean_kl: float | None
    cer_increase: Interval | None
    wer_increase: Interval | None
    kl_interval: Interval | None
    loop_increase: Interval | None
    unfinished_increase: Interval | None
    empty_increase: Interval | None


class ArmReport(FrozenModel):
    """One row of the comparison.

    Attributes:
        name: Which plan.
        num_groups: How many groups have each precision.
        bits_per_weight: Over the searched linears.
        weight_bytes: Bytes of the searched linears, scales included.
        checkpoint_bytes: Bytes of the whole folder on disk; None where the arm was simulated and not written.
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


class Comparison(FrozenModel):
    """How two arms differ on the same pages: the first less the second.

    Attributes:
        arm: The arm of interest.
        baseline: What it is compared with.
        kind: Kind of page; None for all pages.
        cer: Difference of the character error rates.
        wer: Difference of the word error rates.
        kl: Difference of the mean KL divergences from bf16 in nats a token, where both are finite.
    """

    arm: ArmName
    baseline: ArmName
    kind: PageKind | None
    cer: Interval | None
    wer: Interval | None
    kl: Interval | None


class GateCheck(FrozenModel):
    """One threshold of the recipe and what was measured against it.

    Attributes:
        threshold: Its name in the recipe, or ``finite_logits``, which every gate demands. Of
            ``require_equivalence`` the tests that do not show it are counted.
        kind: Kind of page that it was measured on; None for all pages.
        limit: Largest value that passes; smallest where `is_minimum`.
        measured: The estimate that decides; None where nothing could be measured, which does not pass.
        interval: How sure the estimate is; None for a count.
        num_pages: Pages behind it.
        num_documents: Documents behind it.
        reason: What was found in words, where a number does not say it.
        is_minimum: Whether values from the limit up pass, and not those up to it.
    """

    threshold: str
    kind: PageKind | None
    limit: float
    measured: float | None
    interval: Interval | None
    num_pages: int = Field(gt=0)
    num_documents: int = Field(gt=0)
    reason: str = ""
    is_minimum: bool = False

    @property
    def is_passed(self) -> bool:
        """Whether the estimate lies on the right side of the limit."""
        if self.measured is None:
            return False
        return self.measured >= self.limit if self.is_minimum else self.measured <= self.limit

    @property
    def is_conclusive(self) -> bool:
        """Whether the interval lies on one side of the limit, so that other pages would decide alike."""
        if self.measured is None or self.interval is None:
            return True
        return not self.interval.reaches(self.limit, is_minimum=self.is_minimum)


class PageOutput(FrozenModel):
    """A page on which the plan did worst against bf16.

    Attributes:
        page: Its id.
        kind: Its kind.
        document: What it was cut from.
        truth: The text to read, or what bf16 read where there is none.
        image: Its image, relative to the run folder.
        outputs: What each arm read.
        cer: Its character error rate in each arm.
    """

    page: str
    kind: PageKind
    document: str
    truth: str
    image: str
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
        num_bootstrap_samples: Resamples behind each interval.
        seed: Seed of the resamples.
        runtimes: What computed each arm.
        arms: Rows, bf16 first.
        comparisons: The plan against each uniform arm beside bf16, over all pages and for each kind.
        equivalence: Whether the plan reads as well as bf16; None where the recipe states no margin.
        drafts: How a drafter does on the plan; None where the recipe names none.
        gate: Every threshold of the recipe; empty where it states none.
        notes: What a reader must know before trusting a number, one sentence each.
        worst_pages: Pages that lost most, worst first.
        images: The images of these pages, by their path relative to the run folder.
        chain: Every artefact back to the pages.
    """

    FILE_NAME: ClassVar[str] = "report.json"
    # 4: drafters, and thresholds that are minima.
    SCHEMA_VERSION: ClassVar[int] = 4
    STAGE: ClassVar[str] = "evaluate"

    model: str
    recipe_sha256: Sha256
    truth_sources: dict[TruthSource, int]
    num_bootstrap_samples: int = Field(gt=0)
    seed: int = Field(ge=0)
    runtimes: dict[ArmName, RuntimeRecord]
    arms: list[ArmReport] = Field(min_length=1)
    comparisons: list[Comparison]
    equivalence: Equivalence | None
    drafts: DraftReport | None = None
    gate: list[GateCheck]
    notes: list[str]
    worst_pages: list[PageOutput]
    images: dict[str, FileRecord]
    chain: list[ChainLink]

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [arm.name for arm in self.arms]
        if len(set(names)) != len(names) or names[0] != "bf16":
            raise ValueError("arms must be distinct and begin with bf16")
        if list(self.runtimes) != names:
            raise ValueError(f"runtimes of {', '.join(self.runtimes)}, arms {', '.join(names)}")
        if missing := [page.image for page in self.worst_pages if page.image not in self.images]:
            raise ValueError(f"no image {missing[0]!r}")
        return self

    def files(self) -> Mapping[str, FileRecord]:
        """The images of the worst pages."""
        return self.images

    def arm(self, name: ArmName) -> ArmReport | None:
        """The row of that name, if it was measured."""
        return next((arm for arm in self.arms if arm.name == name), None)

    @property
    def is_judged_by_model(self) -> bool:
        """Whether the transcription of bf16 stands in for a truth that the pages do not have."""
        return "model" in self.truth_sources

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
