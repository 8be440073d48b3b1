"""Whether the plan reads as well as bf16: margins and rises in broken outputs, on every kind of page.

How error is controlled. *Equivalent* is claimed only where every kind of page passes every test by itself,
each at level alpha: an intersection-union test, which needs no correction (R. L. Berger, Technometrics 24,
1982). *Worse* is claimed where any test says so; all these claims of a report together keep the level alpha
by Holm's procedure. A rise in broken outputs that is beyond chance by itself, though not among all claims,
leaves the verdict open. Knows scores and margins. Does not know how a verdict is worded.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ocrquant.artifacts import ArmName, BrokenOutput, Equivalence, MarginTest, RiseTest, Transcripts
from ocrquant.artifacts.page_set import PageKind
from ocrquant.evaluate.scoring import BASELINE, Columns, Scores
from ocrquant.metrics import equivalence as tests
from ocrquant.recipe.sections import EquivalenceSection

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["equivalence_frame", "measure_equivalence"]

Event = Literal["is_loop", "is_unfinished", "is_empty"]

PLAN: ArmName = "plan"
EVENTS: dict[BrokenOutput, Event] = {"loop": "is_loop", "cut_off": "is_unfinished", "empty": "is_empty"}


def measure_equivalence(
    scores: Scores, section: EquivalenceSection, *, is_judged_by_model: bool
) -> Equivalence:
    """Tests the plan against bf16 on every kind of page.

    Args:
        scores: All outputs, judged.
        section: Margins and confidence.
        is_judged_by_model: Whether bf16's own text stands in for a truth: then the CER is a distance from
            bf16, which chance alone never makes zero, and only values above the margin are worse.
    """
    alpha = 1.0 - section.confidence
    measured: list[tuple[Literal["cer", "kl"], PageKind, Columns, tests.MarginTest]] = []
    rises: list[tuple[BrokenOutput, PageKind, Columns, int, int]] = []
    for kind in scores.kinds:
        columns = scores.error_columns("characters", PLAN, BASELINE, kind)
        if any(columns.totals):
            found = _margin_test(scores, columns, section.cer_margin, alpha, is_distance=is_judged_by_model)
            measured.append(("cer", kind, columns, found))
        columns = scores.kl_columns(PLAN, BASELINE, kind)
        if section.kl_margin is not None and any(columns.totals):
            found = _margin_test(scores, columns, section.kl_margin, alpha, is_distance=True)
            measured.append(("kl", kind, columns, found))
        for event, field in EVENTS.items():
            columns = scores.event_columns(field, PLAN, BASELINE, kind)
            rises.append((event, kind, columns, *_signs(columns)))
    p_values = [test.p_worse for *_, test in measured]
    p_values += [tests.sign_test(num_more, num_fewer) for *_, num_more, num_fewer in rises]
    stands = tests.holm(p_values, alpha)
    strictest = alpha / len(p_values)
    whole = scores.metrics(PLAN)
    return Equivalence(
        confidence=section.confidence,
        num_pages=whole.num_pages,
        num_nonfinite=whole.num_nonfinite,
        margins=[
            _margin_record(*item, is_beyond_chance=stand, strictest=strictest)
            for item, stand in zip(measured, stands[: len(measured)], strict=True)
        ],
        rises=[
            _rise_record(*item, p_value=p_value, is_beyond_chance=stand, alpha=alpha, strictest=strictest)
            for item, p_value, stand in zip(
                rises, p_values[len(measured) :], stands[len(measured) :], strict=True
            )
        ],
    )


def equivalence_frame(
    run: Path | str,
    *,
    cer_margin: float,
    kl_margin: float | None = None,
    confidence: float = 0.95,
    num_resamples: int = 2000,
    seed: int = 0,
) -> pd.DataFrame:
    """The tests of a finished run with any margin, as a pandas frame: one row a test and kind of page.

    Args:
        run: A run folder; only its ``transcripts.json`` is read, and no model runs.
        cer_margin: Largest change of the CER that counts as none, as a fraction.
        kl_margin: Largest mean KL divergence from bf16 in nats a token; not tested where left out.
        confidence: One less the level of each one-sided test.
        num_resamples: Draws of the bootstrap.
        seed: Makes the draws.

    Raises:
        ArtifactError: There are no transcripts, or they are malformed.
    """
    transcripts = Transcripts.load(run)
    section = EquivalenceSection(cer_margin=cer_margin, kl_margin=kl_margin, confidence=confidence)
    return measure_equivalence(
        Scores(transcripts, num_resamples=num_resamples, seed=seed),
        section,
        is_judged_by_model=any(page.truth_source == "model" for page in transcripts.pages),
    ).to_frame()


def _margin_test(
    scores: Scores, columns: Columns, margin: float, alpha: float, *, is_distance: bool
) -> tests.MarginTest:
    return tests.margin_test(
        columns.counts,
        columns.baseline_counts,
        columns.totals,
        margin=margin,
        alpha=alpha,
        is_distance=is_distance,
        clusters=columns.documents,
        num_resamples=scores.num_resamples,
        seed=scores.seed,
    )


def _signs(columns: Columns) -> tuple[int, int]:
    """Documents in which the first arm has more events, and in which it has fewer."""
    differences: dict[str, float] = dict.fromkeys(columns.documents, 0.0)
    for document, own, base in zip(columns.documents, columns.counts, columns.baseline_counts, strict=True):
        differences[document] += own - base
    values: Sequence[float] = list(differences.values())
    return sum(value > 0 for value in values), sum(value < 0 for value in values)


def _margin_record(
    metric: Literal["cer", "kl"],
    kind: PageKind,
    columns: Columns,
    test: tests.MarginTest,
    *,
    is_beyond_chance: bool,
    strictest: float,
) -> MarginTest:
    outcome = test.outcome(is_beyond_chance=is_beyond_chance)
    is_known = test.num_clusters > 1
    wanted = test.clusters_to_settle(strictest) if outcome == "unsettled" else None
    return MarginTest(
        metric=metric,
        kind=kind,
        margin=test.margin,
        estimate=test.estimate,
        low=test.low if is_known else None,
        high=test.high if is_known else None,
        p_worse=test.p_worse,
        outcome=outcome,
        num_pages=len(columns.documents),
        num_documents=test.num_clusters,
        num_more_documents=None if wanted is None else max(1, wanted - test.num_clusters),
    )


def _rise_record(
    event: BrokenOutput,
    kind: PageKind,
    columns: Columns,
    num_more: int,
    num_fewer: int,
    *,
    p_value: float,
    is_beyond_chance: bool,
    alpha: float,
    strictest: float,
) -> RiseTest:
    num_documents = len(set(columns.documents))
    is_open = p_value <= alpha and not is_beyond_chance
    more = None
    if is_open:
        wanted = tests.clusters_for_rise(num_more, num_fewer, num_documents, strictest)
        more = max(1, wanted - num_documents)
    return RiseTest(
        event=event,
        kind=kind,
        num_more=num_more,
        num_fewer=num_fewer,
        p_value=p_value,
        outcome="worse" if is_beyond_chance else "unsettled" if is_open else "equivalent",
        num_pages=len(columns.documents),
        num_documents=num_documents,
        num_more_documents=more,
    )
