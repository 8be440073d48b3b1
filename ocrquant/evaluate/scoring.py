"""From transcripts to numbers: counts a page, rates over pages, paired intervals, the pages that lost most.

Knows how outputs are judged. Does not know how they were made, nor what they will be compared with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from ocrquant.artifacts import (
    ArmName,
    ArmTranscript,
    Comparison,
    Interval,
    PageTranscripts,
    TextMetrics,
    Transcripts,
)
from ocrquant.artifacts.page_set import PageKind
from ocrquant.metrics.bootstrap import paired_bootstrap
from ocrquant.metrics.text import (
    Ratio,
    character_errors,
    digit_errors,
    exact_lines,
    normalize,
    repetition_loop,
    word_errors,
)

__all__ = ["Columns", "PageCounts", "Scores", "count_page"]

BASELINE: ArmName = "bf16"


class Columns(NamedTuple):
    """Two arms on the same pages, one entry a page; rates are sums over sums.

    Attributes:
        counts: What is counted in the first arm.
        baseline_counts: The same in the second.
        totals: What it is counted against.
        documents: What each page was cut from.
    """

    counts: list[float]
    baseline_counts: list[float]
    totals: list[int]
    documents: list[str]


@dataclass(frozen=True, slots=True)
class PageCounts:
    """What one output holds of its truth.

    Attributes:
        document: What the page was cut from.
        kind: Its kind.
        characters: Wrong characters over characters of truth.
        words: Wrong words over words of truth.
        lines: Exact lines over lines of truth.
        digits: Wrong digits over digits of truth.
        is_loop: Whether the output ends in a loop and the truth does not.
        is_unfinished: Whether the token limit cut the output off.
        is_empty: Whether the output is empty and the truth is not.
        kl_sum: KL divergence from bf16 in nats, summed over tokens; None where logits were not finite.
        num_kl_tokens: Tokens in that sum.
    """

    document: str
    kind: PageKind
    characters: Ratio
    words: Ratio
    lines: Ratio
    digits: Ratio
    is_loop: bool
    is_unfinished: bool
    is_empty: bool
    kl_sum: float | None
    num_kl_tokens: int


def count_page(page: PageTranscripts, output: ArmTranscript) -> PageCounts:
    """Judges one output."""
    return PageCounts(
        document=page.document,
        kind=page.kind,
        characters=character_errors(page.truth, output.text),
        words=word_errors(page.truth, output.text),
        lines=exact_lines(page.truth, output.text),
        digits=digit_errors(page.truth, output.text),
        is_loop=repetition_loop(output.text) is not None and repetition_loop(page.truth) is None,
        is_unfinished=not output.finished,
        is_empty=not normalize(output.text) and bool(normalize(page.truth)),
        kl_sum=output.kl_sum,
        num_kl_tokens=output.num_kl_tokens,
    )


class Scores:
    """All outputs of a run, judged once; everything else is a sum over some of them.

    Args:
        transcripts: What each arm read.
        num_resamples: Resamples of the documents behind each interval.
        seed: Seed of the resamples.
    """

    def __init__(self, transcripts: Transcripts, *, num_resamples: int, seed: int) -> None:
        self._pages = transcripts.pages
        self.num_resamples, self.seed = num_resamples, seed
        self._counts: dict[ArmName, list[PageCounts]] = {
            arm: [count_page(page, page.arms[arm]) for page in transcripts.pages]
            for arm in transcripts.arm_names
        }

    @property
    def kinds(self) -> list[PageKind]:
        """Kinds of page that occur, the smallest first."""
        found = {page.kind for page in self._pages}
        return [kind for kind in get_args(PageKind) if kind in found]

    def metrics(self, arm: ArmName, kind: PageKind | None = None) -> TextMetrics:
        """Quality of one arm on all pages, or on those of one kind."""
        pages = self._select(arm, kind)
        finite = [page for page in pages if page.kl_sum is not None]
        tokens = sum(page.num_kl_tokens for page in finite)
        digits = _sum([page.digits for page in pages])

        def interval(columns: Columns) -> Interval | None:
            return None if arm == BASELINE else self._interval(columns)

        characters = _sum([page.characters for page in pages])
        return TextMetrics(
            num_pages=len(pages),
            num_documents=len({page.document for page in pages}),
            num_characters=characters.total,
            cer=characters.rate,
            wer=_sum([page.words for page in pages]).rate,
            exact_line_rate=_sum([page.lines for page in pages]).rate,
            digit_error_rate=digits.rate if digits.total else None,
            num_repetition_loops=sum(page.is_loop for page in pages),
            num_unfinished=sum(page.is_unfinished for page in pages),
            num_empty=sum(page.is_empty for page in pages),
            num_nonfinite=len(pages) - len(finite),
            mean_kl=sum(page.kl_sum or 0.0 for page in finite) / tokens if tokens else None,
            cer_increase=interval(self.error_columns("characters", arm, BASELINE, kind)),
            wer_increase=interval(self.error_columns("words", arm, BASELINE, kind)),
            kl_interval=interval(self.kl_columns(arm, BASELINE, kind)),
            loop_increase=interval(self.event_columns("is_loop", arm, BASELINE, kind)),
            unfinished_increase=interval(self.event_columns("is_unfinished", arm, BASELINE, kind)),
            empty_increase=interval(self.event_columns("is_empty", arm, BASELINE, kind)),
        )

    def comparison(self, arm: ArmName, baseline: ArmName, kind: PageKind | None = None) -> Comparison:
        """One arm less another on the same pages."""
        return Comparison(
            arm=arm,
            baseline=baseline,
            kind=kind,
            cer=self._interval(self.error_columns("characters", arm, baseline, kind)),
            wer=self._interval(self.error_columns("words", arm, baseline, kind)),
            kl=self._interval(self.kl_columns(arm, baseline, kind)),
        )

    def worst_pages(self, arm: ArmName, num_pages: int) -> list[PageTranscripts]:
        """Pages on which an arm lost most CER against bf16; where it lost none, its worst pages."""

        def rank(index: int) -> tuple[float, float, float, str]:
            own, base = (self._counts[name][index] for name in (arm, BASELINE))
            divergence = float("inf") if own.kl_sum is None else own.kl_sum
            loss = own.characters.rate - base.characters.rate
            return -loss, -own.characters.rate, -divergence, self._pages[index].page

        order = sorted(range(len(self._pages)), key=rank)
        return [self._pages[index] for index in order[:num_pages]]

    def page_cer(self, arm: ArmName, page: PageTranscripts) -> float:
        """CER of one arm on one page."""
        return self._counts[arm][self._pages.index(page)].characters.rate

    def error_columns(
        self, field: Literal["characters", "words"], arm: ArmName, baseline: ArmName, kind: PageKind | None
    ) -> Columns:
        """Wrong characters or words of two arms over those of the truth."""
        own = self._select(arm, kind)
        ratios, base = (
            [getattr(page, field) for page in pages] for pages in (own, self._select(baseline, kind))
        )
        return Columns(
            [ratio.count for ratio in ratios],
            [ratio.count for ratio in base],
            [ratio.total for ratio in ratios],
            [page.document for page in own],
        )

    def kl_columns(self, arm: ArmName, baseline: ArmName, kind: PageKind | None) -> Columns:
        """Summed KL of two arms from bf16 over tokens, where both are finite."""
        found: tuple[list[Any], ...] = ([], [], [], [])
        for own, base in zip(self._select(arm, kind), self._select(baseline, kind), strict=True):
            if own.kl_sum is not None and base.kl_sum is not None:
                values = (own.kl_sum, base.kl_sum, own.num_kl_tokens, own.document)
                for column, value in zip(found, values, strict=True):
                    column.append(value)
        return Columns(*found)

    def event_columns(
        self,
        field: Literal["is_loop", "is_unfinished", "is_empty"],
        arm: ArmName,
        baseline: ArmName,
        kind: PageKind | None,
    ) -> Columns:
        """Pages of two arms on which something happened, over pages."""
        own = self._select(arm, kind)
        happened, base = (
            [float(getattr(page, field)) for page in pages] for pages in (own, self._select(baseline, kind))
        )
        return Columns(happened, base, [1] * len(own), [page.document for page in own])

    def _select(self, arm: ArmName, kind: PageKind | None) -> list[PageCounts]:
        return [page for page in self._counts[arm] if kind is None or page.kind == kind]

    def _interval(self, columns: Columns) -> Interval | None:
        if not sum(columns.totals):
            return None
        found = paired_bootstrap(
            columns.counts,
            columns.baseline_counts,
            columns.totals,
            clusters=columns.documents,
            num_resamples=self.num_resamples,
            seed=self.seed,
        )
        if len(set(columns.documents)) < 2:
            return Interval(estimate=found.estimate, low=None, high=None)
        return Interval(estimate=found.estimate, low=found.low, high=found.high)


def _sum(ratios: Sequence[Ratio]) -> Ratio:
    return sum(ratios, Ratio(0, 0))
