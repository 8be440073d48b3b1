"""From transcripts to numbers: counts a page, rates over pages, paired intervals, the pages that lost most.

Knows how outputs are judged. Does not know how they were made, nor what they will be compared with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

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
    repetition_loop,
    word_errors,
)

__all__ = ["PageCounts", "Scores", "count_page"]

BASELINE: ArmName = "bf16"


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
        self._num_resamples, self._seed = num_resamples, seed
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
        is_compared = arm != BASELINE
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
            num_nonfinite=len(pages) - len(finite),
            mean_kl=sum(page.kl_sum or 0.0 for page in finite) / tokens if tokens else None,
            cer_increase=self._error_interval("characters", arm, BASELINE, kind) if is_compared else None,
            wer_increase=self._error_interval("words", arm, BASELINE, kind) if is_compared else None,
            kl_interval=self._kl_interval(arm, BASELINE, kind) if is_compared else None,
        )

    def comparison(self, arm: ArmName, baseline: ArmName, kind: PageKind | None = None) -> Comparison:
        """One arm less another on the same pages."""
        return Comparison(
            arm=arm,
            baseline=baseline,
            kind=kind,
            cer=self._error_interval("characters", arm, baseline, kind),
            wer=self._error_interval("words", arm, baseline, kind),
            kl=self._kl_interval(arm, baseline, kind),
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

    def _select(self, arm: ArmName, kind: PageKind | None) -> list[PageCounts]:
        return [page for page in self._counts[arm] if kind is None or page.kind == kind]

    def _error_interval(
        self, field: str, arm: ArmName, baseline: ArmName, kind: PageKind | None
    ) -> Interval | None:
        own, base = self._select(arm, kind), self._select(baseline, kind)
        ratios: list[Ratio] = [getattr(page, field) for page in own]
        base_ratios: list[Ratio] = [getattr(page, field) for page in base]
        return self._interval(
            [ratio.count for ratio in ratios],
            [ratio.count for ratio in base_ratios],
            [ratio.total for ratio in ratios],
            [page.document for page in own],
        )

    def _kl_interval(self, arm: ArmName, baseline: ArmName, kind: PageKind | None) -> Interval | None:
        pairs = [
            (own, base)
            for own, base in zip(self._select(arm, kind), self._select(baseline, kind), strict=True)
            if own.kl_sum is not None and base.kl_sum is not None
        ]
        return self._interval(
            [own.kl_sum or 0.0 for own, _ in pairs],
            [base.kl_sum or 0.0 for _, base in pairs],
            [own.num_kl_tokens for own, _ in pairs],
            [own.document for own, _ in pairs],
        )

    def _interval(
        self,
        numerators: Sequence[float],
        baseline_numerators: Sequence[float],
        denominators: Sequence[int],
        documents: Sequence[str],
    ) -> Interval | None:
        if not sum(denominators):
            return None
        found = paired_bootstrap(
            numerators,
            baseline_numerators,
            denominators,
            clusters=documents,
            num_resamples=self._num_resamples,
            seed=self._seed,
        )
        if len(set(documents)) < 2:
            return Interval(estimate=found.estimate, low=None, high=None)
        return Interval(estimate=found.estimate, low=found.low, high=found.high)


def _sum(ratios: Sequence[Ratio]) -> Ratio:
    return sum(ratios, Ratio(0, 0))
