"""Whether the plan reads as well as bf16: every test with its outcome, as it stands in ``report.json``.

Knows numbers and outcomes. Does not know how a test is made, nor how it is told.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from ocrquant.artifacts.base import FrozenModel
from ocrquant.artifacts.page_set import PageKind
from ocrquant.metrics.outcomes import Outcome

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["BrokenOutput", "Equivalence", "MarginTest", "Outcome", "RiseTest"]

BrokenOutput = Literal["loop", "cut_off", "empty"]


class MarginTest(FrozenModel):
    """Two one-sided tests of the plan against bf16 on one kind of page.

    Attributes:
        metric: ``cer``, a fraction; or ``kl``, nats a token.
        kind: Kind of page.
        margin: Largest difference that counts as none.
        estimate: The plan less bf16.
        low: Lower end of the interval with confidence 1 - 2 alpha that must lie within the margin; None where
            a single document tells nothing about others.
        high: Upper end; None together with `low`.
        p_worse: One-sided chance of so large an estimate if the plan were no worse.
        outcome: What follows.
        num_pages: Pages behind it.
        num_documents: Documents behind it.
        num_more_documents: About how many more documents would settle it; at least so many where there is
            one document alone; None where it is settled, or no number would.
    """

    metric: Literal["cer", "kl"]
    kind: PageKind
    margin: float = Field(gt=0)
    estimate: float
    low: float | None
    high: float | None
    p_worse: float = Field(ge=0, le=1)
    outcome: Outcome
    num_pages: int = Field(gt=0)
    num_documents: int = Field(gt=0)
    num_more_documents: int | None

    @property
    def badness(self) -> float:
        """How near the upper end comes to the margin, or how far beyond; 1 at the margin."""
        return float("inf") if self.high is None else self.high / self.margin


class RiseTest(FrozenModel):
    """Sign test for more broken outputs of the plan than of bf16 on one kind of page.

    Attributes:
        event: ``loop``: the output ends in a loop and the truth does not; ``cut_off``: the token limit ended
            it; ``empty``: it holds nothing and the truth does.
        kind: Kind of page.
        num_more: Documents with more such pages in the plan than in bf16.
        num_fewer: Documents with fewer.
        p_value: One-sided chance of so many rises if a rise were as likely as a fall.
        outcome: ``worse`` beyond chance among all claims of the report; ``unsettled`` where only this test
            by itself is; else ``equivalent``: no rise is to be seen.
        num_pages: Pages behind it.
        num_documents: Documents behind it.
        num_more_documents: About how many more documents would settle it; None where it is settled.
    """

    event: BrokenOutput
    kind: PageKind
    num_more: int = Field(ge=0)
    num_fewer: int = Field(ge=0)
    p_value: float = Field(ge=0, le=1)
    outcome: Outcome
    num_pages: int = Field(gt=0)
    num_documents: int = Field(gt=0)
    num_more_documents: int | None


class Equivalence(FrozenModel):
    """All tests of the plan against bf16; every kind of page must pass each.

    Attributes:
        confidence: One less the level alpha of each one-sided test.
        num_pages: Held-out pages of all kinds.
        num_nonfinite: Pages on which logits were NaN or infinite; any makes the plan worse.
        margins: Tests against a margin.
        rises: Tests for more broken outputs.
    """

    confidence: float = Field(gt=0.5, lt=1)
    num_pages: int = Field(gt=0)
    num_nonfinite: int = Field(ge=0)
    margins: list[MarginTest]
    rises: list[RiseTest]

    @property
    def tests(self) -> list[MarginTest | RiseTest]:
        """All of them."""
        return [*self.margins, *self.rises]

    @property
    def outcome(self) -> Outcome:
        """The worst outcome of any kind of page."""
        found = {test.outcome for test in self.tests}
        if self.num_nonfinite or "worse" in found:
            return "worse"
        if not self.margins or "unsettled" in found:
            return "unsettled"
        return "better" if "better" in found else "equivalent"

    @property
    def is_passed(self) -> bool:
        """Whether no kind of page loses more than its margin."""
        return self.outcome in ("equivalent", "better")

    @property
    def num_more_pages(self) -> int | None:
        """About how many more pages would settle it, if they are mixed like these.

        None where it is settled or no number would.
        """
        open_tests = [test for test in self.tests if test.outcome == "unsettled"]
        if self.outcome != "unsettled" or not open_tests:
            return None
        shares = [
            None if test.num_more_documents is None else test.num_more_documents / test.num_documents
            for test in open_tests
        ]
        known = [share for share in shares if share is not None]
        return None if len(known) < len(shares) else math.ceil(max(known) * self.num_pages)

    def to_frame(self) -> pd.DataFrame:
        """One row a test: ``cer``, ``kl``, ``loop``, ``cut_off`` or ``empty`` on one kind of page."""
        import pandas as pd

        rows = [
            {"test": test.metric if isinstance(test, MarginTest) else test.event, **test.model_dump()}
            for test in self.tests
        ]
        return pd.DataFrame(rows).drop(columns=["metric", "event"], errors="ignore")
