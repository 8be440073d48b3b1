"""``drafts.json``: how a drafter's guesses did on every held-out page that the plan read with it.

Knows counts. Does not know what drafts, nor how acceptance is summed up: the report is made from this file,
so another threshold or interval costs no second run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from ocrquant.artifacts.base import Artifact, FrozenModel
from ocrquant.artifacts.interval import Interval
from ocrquant.artifacts.page_set import PageKind

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["DraftDesign", "DraftMetrics", "DraftReport", "Drafts", "PageDrafts"]

DraftDesign = Literal["dflash", "dflash2"]


class PageDrafts(FrozenModel):
    """One held-out page, read by the plan with drafts.

    Attributes:
        page: Its id.
        kind: Its kind.
        document: What it was cut from.
        num_tokens: Tokens of the answer, the end token included.
        num_windows: Steps that verified guesses.
        num_guessed: Guesses.
        num_accepted: Those that the plan chose as well, also beyond the end of the answer.
        tried: At place j the verifications with more than j guesses whose first j were all accepted.
        survived: At place j the verifications whose first j + 1 guesses were all accepted.
        other_text: What was read, where it is not what the plan reads without drafts.
    """

    page: str
    kind: PageKind
    document: str
    num_tokens: int = Field(ge=0)
    num_windows: int = Field(ge=0)
    num_guessed: int = Field(ge=0)
    num_accepted: int = Field(ge=0)
    tried: list[int]
    survived: list[int]
    other_text: str | None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.num_windows > self.num_guessed:
            raise ValueError("a window verifies at least one guess")
        if self.num_accepted > self.num_guessed:
            raise ValueError("more accepted than guessed")
        if sum(self.survived) != self.num_accepted:
            raise ValueError("survived must sum to num_accepted")
        return self

    @property
    def num_emitted(self) -> int:
        """Tokens of the answer that verifications emitted.

        Each emits the guesses that it accepts and one token of the plan's own. The first token of an answer
        comes with its prompt, and what agrees beyond the end of the answer is dropped: on 24 crops of pico it
        would raise 5.66 tokens a verification to 5.82 (2026-11-30).
        """
        return max(0, min(self.num_windows + self.num_accepted, self.num_tokens - 1))


class Drafts(Artifact):
    """All held-out pages, in the order of ``pages.json``.

    Attributes:
        design: What kind of drafter.
        block_size: Tokens of a verification: the last known one, and guesses.
        pages: The pages.
    """

    FILE_NAME: ClassVar[str] = "drafts.json"
    STAGE: ClassVar[str] = "evaluate"

    design: DraftDesign
    block_size: int = Field(ge=2)
    pages: list[PageDrafts] = Field(min_length=1)

    def to_frame(self) -> pd.DataFrame:
        """One row a page."""
        import pandas as pd

        return pd.DataFrame([page.model_dump() for page in self.pages])


class DraftMetrics(FrozenModel):
    """A drafter on some pages.

    Attributes:
        num_pages: Pages counted.
        num_documents: Documents that they come from.
        num_tokens: Tokens of their answers.
        num_windows: Verifications.
        num_same: Pages whose text is that of the plan without drafts.
        length: Acceptance length: tokens of the answer that a verification emits, the guesses that it accepts
            and one of the plan's own; None where nothing was verified.
        survival: Chances that the first 1, 2, ... guesses are all accepted, also beyond the end of an answer.
    """

    num_pages: int = Field(gt=0)
    num_documents: int = Field(gt=0)
    num_tokens: int = Field(ge=0)
    num_windows: int = Field(ge=0)
    num_same: int = Field(ge=0)
    length: Interval | None
    survival: list[Annotated[float, Field(ge=0, le=1)]]


class DraftReport(FrozenModel):
    """What a report says of a drafter.

    Attributes:
        drafter: As the recipe names it.
        design: What kind of drafter.
        block_size: Tokens of a verification.
        overall: On all held-out pages.
        by_kind: On each kind of page.
        other_pages: Pages whose text is another one than without drafts.
    """

    drafter: str
    design: DraftDesign
    block_size: int = Field(ge=2)
    overall: DraftMetrics
    by_kind: dict[PageKind, DraftMetrics]
    other_pages: list[str]
