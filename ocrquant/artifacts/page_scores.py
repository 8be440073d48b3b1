"""``page_scores.json``: which pages a score comes from. Beside ``sensitivity.json``, for people to look into.

Knows sums by page. No stage reads it: plans follow the means alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from ocrquant.artifacts.base import Artifact, FrozenModel
from ocrquant.artifacts.sensitivity import SCORE_PREFERENCE, ScoreKind
from ocrquant.errors import PatternError
from ocrquant.formats import Precision

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["PageScoreRow", "PageScores", "ScoredPage"]


class ScoredPage(FrozenModel):
    """One page that was scored.

    Attributes:
        id: Its name in ``pages.json``.
        num_tokens: Answer tokens that were judged.
    """

    id: str
    num_tokens: int = Field(ge=0)


class PageScoreRow(FrozenModel):
    """One score, page by page.

    Attributes:
        group: Name of the group.
        precision: Format of its weights and activations.
        score: Kind of score, as in ``sensitivity.json``; screened ones are one of these.
        sums: Sum over the judged tokens of each page; divided by all tokens they add up to the mean.
    """

    group: str
    precision: Precision
    score: Literal["gradient", "kl", "loss"]
    sums: list[float]


class PageScores(Artifact):
    """Every score of ``sensitivity.json`` before it was averaged over the pages."""

    FILE_NAME: ClassVar[str] = "page_scores.json"
    STAGE: ClassVar[str] = "sensitivity"

    pages: list[ScoredPage] = Field(min_length=1)
    rows: list[PageScoreRow]

    @model_validator(mode="after")
    def _check(self) -> Self:
        for row in self.rows:
            if len(row.sums) != len(self.pages):
                raise ValueError(f"{len(row.sums)} sums of {row.group!r} for {len(self.pages)} pages")
        return self

    def row(self, group: str, precision: Precision | str) -> PageScoreRow:
        """The score of a group in a format: the measured one where there is one.

        Raises:
            PatternError: There is none.
        """
        found: dict[ScoreKind, PageScoreRow] = {
            row.score: row for row in self.rows if (row.group, row.precision) == (group, precision)
        }
        if not found:
            raise PatternError(
                f"{group} in {precision}",
                expected="a group and a format that were scored",
                given="none of that name",
                fix="name a row of sensitivity.json",
            )
        return next(found[kind] for kind in SCORE_PREFERENCE if kind in found)

    def to_frame(self, group: str, precision: Precision | str) -> pd.DataFrame:
        """The pages behind one score, the largest contribution first.

        Args:
            group: Name of the group.
            precision: The format.

        Returns:
            A frame with the columns ``page``, ``num_tokens``, ``sum``, ``per_token`` and ``share`` (of the
            whole score; below zero where noise is).

        Raises:
            PatternError: There is no such score.
        """
        import pandas as pd

        row = self.row(group, precision)
        frame = pd.DataFrame([page.model_dump() for page in self.pages]).rename(columns={"id": "page"})
        frame["sum"] = row.sums
        frame["per_token"] = frame["sum"] / frame["num_tokens"].where(frame["num_tokens"] > 0)
        total = frame["sum"].sum()
        frame["share"] = frame["sum"] / total if total else 0.0
        return frame.sort_values(["sum", "page"], ascending=[False, True], ignore_index=True)
