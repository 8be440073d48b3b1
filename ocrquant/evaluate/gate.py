"""Whether the plan may pass: thresholds of the recipe against what was measured, in numbers and in words.

The point estimate decides, as the recipe's reader expects of a threshold; the interval is printed beside
it, and where it reaches across the limit the report says that other pages might decide otherwise. Knows
reports and the gate's section; does not know how anything was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ocrquant.artifacts import (
    ArmReport,
    DraftMetrics,
    Equivalence,
    GateCheck,
    Interval,
    Report,
    TextMetrics,
)
from ocrquant.artifacts.page_set import PageKind
from ocrquant.errors import GateError
from ocrquant.evaluate.verdict import equivalence_sentence, equivalence_title
from ocrquant.evaluate.words import (
    KIND_NAMES,
    bits,
    count,
    interval_range,
    nats,
    percent,
    points,
    points_interval,
)
from ocrquant.metrics.equivalence import MIN_CLUSTERS
from ocrquant.recipe.sections import GateSection

__all__ = [
    "FEW_DOCUMENTS",
    "Verdict",
    "enforce_gate",
    "gate_checks",
    "gate_notes",
    "measured_text",
    "verdict",
]

FEW_DOCUMENTS = MIN_CLUSTERS
"""Below this many clusters a percentile bootstrap is known to give intervals that are too narrow."""


REQUIRE_EQUIVALENCE = "require_equivalence"
MIN_ACCEPTANCE_LENGTH = "min_acceptance_length"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The first thing that a reader sees.

    Attributes:
        status: Whether the gate holds; ``none`` where the recipe states no threshold.
        title: Two or three words.
        sentence: The plan against bf16.
    """

    status: Literal["passed", "failed", "none"]
    title: str
    sentence: str


def gate_checks(
    gate: GateSection | None,
    plan: ArmReport,
    equivalence: Equivalence | None = None,
    drafts: DraftMetrics | None = None,
) -> list[GateCheck]:
    """Every threshold of a recipe against the plan, and the demand for finite logits; none without a gate.

    Args:
        gate: Section of the recipe.
        plan: What the plan reads.
        equivalence: Whether that is as good as bf16.
        drafts: How a drafter does on it, over all pages.
    """
    if gate is None:
        return []
    whole = plan.overall
    checks = [_check("finite_logits", None, 0.0, float(whole.num_nonfinite), None, whole)]
    if gate.max_cer_increase is not None:
        checks.append(_increase("max_cer_increase", None, gate.max_cer_increase, whole))
    if gate.max_worst_kind_cer_increase is not None:
        kind = max(plan.by_kind, key=lambda kind: _estimate(plan.by_kind[kind]))
        limit = gate.max_worst_kind_cer_increase
        checks.append(_increase("max_worst_kind_cer_increase", kind, limit, plan.by_kind[kind]))
    if gate.max_kl is not None:
        checks.append(_check("max_kl", None, gate.max_kl, whole.mean_kl, whole.kl_interval, whole))
    if gate.require_equivalence:
        checks.append(_equivalence(equivalence, whole))
    if gate.min_acceptance_length is not None:
        checks.append(_acceptance(gate.min_acceptance_length, drafts))
    return checks


def gate_notes(checks: Sequence[GateCheck]) -> list[str]:
    """What a reader must know before trusting the gate: too few pages, or an interval across a limit."""
    notes = []
    measured = [check for check in checks if check.interval is not None]
    few = [check for check in measured if check.num_documents < FEW_DOCUMENTS]
    if few:
        fewest = min(few, key=lambda check: check.num_documents)
        base = f"{count(fewest.num_pages, 'page')} of {count(fewest.num_documents, 'document')}"
        if fewest.num_documents == 1:
            consequence = "one document says nothing about others, so there is no interval"
        else:
            consequence = f"below {FEW_DOCUMENTS} documents the intervals are too narrow"
        notes.append(f"The gate has too few pages: {fewest.threshold} rests on {base}; {consequence}.")
    for check in measured:
        if not check.is_conclusive and check.interval is not None and check.interval.low is not None:
            verb = "passes" if check.is_passed else "fails"
            notes.append(
                f"{check.threshold} {verb} by its estimate, but its interval reaches across the limit: "
                f"other pages might decide otherwise. More held-out documents would settle it."
            )
    return notes


def verdict(report: Report) -> Verdict:
    """Sums a report up in one line."""
    found, sentence, title = report.equivalence, _sentence(report), ""
    if found is not None:
        title = equivalence_title(found)
        sentence = f"{equivalence_sentence(found)} {sentence}"
    if not report.gate:
        return Verdict("none", title or "No gate", sentence)
    after = f"; {title[:1].lower()}{title[1:]}" if title else ""
    if report.is_passed:
        return Verdict("passed", f"Gate passed{after}", sentence)
    failed = [check for check in report.gate if not check.is_passed]
    missed = {check.threshold for check in failed if check.is_minimum}
    exceeded = [c.threshold for c in failed if c.threshold not in {*missed, REQUIRE_EQUIVALENCE}]
    words = f"{' and '.join(exceeded)} exceeded. " if exceeded else ""
    words += "".join(f"{threshold} not reached. " for threshold in sorted(missed))
    words += f"{REQUIRE_EQUIVALENCE} is not met. " if len(exceeded) + len(missed) < len(failed) else ""
    return Verdict("failed", f"Gate failed{after}", words + sentence)


def enforce_gate(report: Report, folder: Path) -> None:
    """Raises where a threshold is exceeded; call it after the report is written.

    Args:
        report: The report.
        folder: The run folder that holds it, named in the message.

    Raises:
        GateError: Names the first threshold that was exceeded, with what was measured.
    """
    failed = [check for check in report.gate if not check.is_passed]
    if not failed:
        return
    first = failed[0]
    others = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
    report_page = folder / "report.html"
    if first.threshold == REQUIRE_EQUIVALENCE:
        raise GateError(
            f"gate: {first.threshold}{others}",
            expected="the plan equal to bf16 within the margin on every kind of page",
            given=first.reason.removesuffix("."),
            fix=f"read {report_page}, then add pages, raise the budget or the margin",
        )
    raise GateError(
        f"gate: {first.threshold}{others}",
        expected=f"at {'least' if first.is_minimum else 'most'} {first.limit:g}"
        + (f" on {KIND_NAMES[first.kind]}" if first.kind else ""),
        given=measured_text(first, plain=True),
        fix=f"read {report_page}, then "
        + ("train the drafter further or lower" if first.is_minimum else "raise the budget or")
        + " the threshold",
    )


def measured_text(check: GateCheck, *, plain: bool = False) -> str:
    """What was measured, with its interval, in the unit of the threshold, or the reason in words.

    Args:
        check: The check.
        plain: Write fractions as the recipe does instead of percentage points.
    """
    if check.reason:
        return check.reason
    is_length = check.threshold == MIN_ACCEPTANCE_LENGTH
    if check.measured is None:
        return f"nothing: {'no guess was verified' if is_length else 'no page has finite logits'}"
    if check.threshold == "finite_logits":
        return count(int(check.measured), "page") + " with NaN or Inf"
    if check.interval is not None and not plain and check.threshold != "max_kl" and not is_length:
        return points_interval(check.interval)
    decimals = 2 if is_length else 4
    text = f"{check.measured:.{decimals}f}" if plain or is_length else nats(check.measured)
    if check.interval is None or check.interval.low is None:
        return text
    ends = interval_range(check.interval, decimals=decimals)
    return f"{text} (95 % interval {ends})" if plain else f"{text} ({ends})"


def _sentence(report: Report) -> str:
    plan, base = report.arm("plan"), report.arms[0]
    if plan is None:
        return "The plan was not measured."
    size = f"At {bits(plan.bits_per_weight)} bits per weight the plan"
    found = plan.overall.cer_increase
    if found is None:
        return f"{size} was compared on pages whose truth is empty."
    if found.low is None:
        chance = "a single document gives no interval"
    else:
        chance = f"95\u202f% interval {interval_range(found, factor=100)}"
    difference = f"{points(found.estimate)} points"
    if report.is_judged_by_model:
        share = percent(plan.overall.cer)
        return f"{size} differs from bf16's own transcription in {share} of characters ({chance})."
    clear = "" if found.includes_zero else ", which is more than chance"
    return (
        f"{size} reads with a CER of {percent(plan.overall.cer)}, bf16 with {percent(base.overall.cer)}: "
        f"{difference} ({chance}){clear}."
    )


def _estimate(metrics: TextMetrics) -> float:
    return float("-inf") if metrics.cer_increase is None else metrics.cer_increase.estimate


def _increase(threshold: str, kind: PageKind | None, limit: float, metrics: TextMetrics) -> GateCheck:
    # Without characters to count there is nothing to lose.
    found = metrics.cer_increase or Interval(estimate=0.0, low=None, high=None)
    return _check(threshold, kind, limit, found.estimate, found, metrics)


def _equivalence(found: Equivalence | None, metrics: TextMetrics) -> GateCheck:
    """Counts the tests that do not show it; a verdict that rests on none of them counts as one."""
    assert found is not None, "the recipe's schema demands a margin"
    tests = sum(test.outcome in ("worse", "unsettled") for test in found.tests)
    failed = 0 if found.is_passed else max(1, tests)
    check = _check(REQUIRE_EQUIVALENCE, None, 0.0, float(failed), None, metrics)
    reason = equivalence_title(found)
    if not found.is_passed:
        reason += f": {equivalence_sentence(found)}"
    return check.model_copy(update={"reason": reason})


def _acceptance(limit: float, found: DraftMetrics | None) -> GateCheck:
    """The acceptance length, which is the better the larger it is."""
    assert found is not None, "the recipe's schema demands a drafter"
    return GateCheck(
        threshold=MIN_ACCEPTANCE_LENGTH,
        kind=None,
        limit=limit,
        measured=None if found.length is None else found.length.estimate,
        interval=found.length,
        num_pages=found.num_pages,
        num_documents=found.num_documents,
        is_minimum=True,
    )


def _check(
    threshold: str,
    kind: PageKind | None,
    limit: float,
    measured: float | None,
    interval: Interval | None,
    metrics: TextMetrics,
) -> GateCheck:
    return GateCheck(
        threshold=threshold,
        kind=kind,
        limit=limit,
        measured=measured,
        interval=interval,
        num_pages=metrics.num_pages,
        num_documents=metrics.num_documents,
    )
