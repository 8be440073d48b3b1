"""The tables of the report as text, rendered by whoever writes HTML or Markdown.

Knows which numbers stand side by side and how they are headed. Knows no markup.
"""

from __future__ import annotations

from statistics import median
from typing import Any

from ocrquant.artifacts import (
    Assignment,
    Report,
    Rounding,
    RoundingStep,
    Sensitivity,
    Statistics,
    TextMetrics,
)
from ocrquant.evaluate.gate import measured_text
from ocrquant.evaluate.table import Table
from ocrquant.evaluate.words import (
    ARM_NAMES,
    KIND_NAMES,
    NOTHING,
    PRECISION_NAMES,
    bits,
    byte_size,
    change,
    count,
    interval_range,
    nats,
    number,
    percent,
    points_interval,
)
from ocrquant.formats import FORMATS

__all__ = [
    "Table",
    "arms_table",
    "chain_table",
    "comparison_table",
    "gate_table",
    "kinds_table",
    "outliers_table",
    "sensitive_groups_table",
    "timings_table",
    "weight_steps_table",
]

_STEP_NAMES = {
    "smoothing": "smoothing into the norm",
    "scale_search": "scale search",
    "gptq": "GPTQ compensation",
}
_POINTS = "points (95 %)"


def arms_table(report: Report) -> Table:
    """One row an arm: size, quality and its difference to bf16."""
    error, words = _error_names(report)
    base = report.arms[0]
    rows = []
    for arm in report.arms:
        found = arm.overall
        size = NOTHING if base.checkpoint_bytes is None else byte_size(base.checkpoint_bytes)
        if arm.checkpoint_bytes is not None:
            size = byte_size(arm.checkpoint_bytes)
        elif base.checkpoint_bytes is not None:
            # Never written: what the source holds beside the searched weights stays as it is.
            size = "≈ " + byte_size(base.checkpoint_bytes - base.weight_bytes + arm.weight_bytes)
        rows.append(
            (
                ARM_NAMES[arm.name],
                bits(arm.bits_per_weight),
                byte_size(arm.weight_bytes),
                size,
                percent(found.cer),
                points_interval(found.cer_increase),
                percent(found.wer),
                percent(found.exact_line_rate),
                percent(found.digit_error_rate),
                str(found.num_repetition_loops),
                str(found.num_unfinished),
                nats(found.mean_kl),
            )
        )
    header = (
        "",
        "Bits per weight",
        "Searched weights",
        "Checkpoint",
        error,
        f"Δ {error}, {_POINTS}",
        words,
        "Exact lines",
        "Digit errors",
        "Loops",
        "Cut off",
        "KL, nats a token",
    )
    strong = frozenset(index for index, arm in enumerate(report.arms) if arm.name == "plan")
    return Table(header, tuple(rows), strong=strong)


def kinds_table(report: Report) -> Table:
    """All pages and each kind of page, with every interval."""
    error, words = _error_names(report)
    kinds = list(report.arms[0].by_kind)
    rows: list[tuple[str, ...]] = []
    strong, groups = set(), set()
    for kind in [None, *kinds] if len(kinds) > 1 else kinds:
        groups.add(len(rows))
        name = "All" if kind is None else KIND_NAMES[kind].capitalize()
        for arm in report.arms:
            found = arm.overall if kind is None else arm.by_kind[kind]
            if arm.name == "plan":
                strong.add(len(rows))
            rows.append(
                (
                    f"{name} ({found.num_pages})" if len(rows) in groups else "",
                    ARM_NAMES[arm.name],
                    percent(found.cer),
                    points_interval(found.cer_increase),
                    percent(found.wer),
                    points_interval(found.wer_increase),
                    percent(found.exact_line_rate),
                    percent(found.digit_error_rate),
                    _kl(found),
                )
            )
    header = (
        "Pages",
        "",
        error,
        f"Δ {error}, {_POINTS}",
        words,
        f"Δ {words}, {_POINTS}",
        "Exact lines",
        "Digit errors",
        "KL, nats a token (95 %)",
    )
    return Table(header, tuple(rows), 2, frozenset(strong), frozenset(groups))


def comparison_table(report: Report) -> Table:
    """The plan less each uniform arm."""
    error, words = _error_names(report)
    rows = tuple(
        (
            f"Plan less {ARM_NAMES[item.baseline].replace('Uniform', 'uniform')}",
            "all" if item.kind is None else KIND_NAMES[item.kind],
            points_interval(item.cer),
            points_interval(item.wer),
            NOTHING
            if item.kl is None
            else f"{nats(item.kl.estimate)} ({interval_range(item.kl, decimals=4)})",
        )
        for item in report.comparisons
    )
    groups = frozenset(index for index, item in enumerate(report.comparisons) if item.kind is None)
    header = ("", "Pages", f"Δ {error}, {_POINTS}", f"Δ {words}, {_POINTS}", "Δ KL, nats a token (95 %)")
    return Table(header, rows, 2, groups=groups)


def gate_table(report: Report) -> Table:
    """Each threshold, what was measured, and whether it holds."""
    rows = []
    for check in report.gate:
        limit = f"{check.limit:g}"
        if check.threshold == "finite_logits":
            limit = "0 pages"
        elif check.threshold == "require_equivalence":
            limit = "each kind within its margin"
        elif check.is_minimum:
            limit = f"at least {limit}"
        elif check.threshold != "max_kl":
            limit = f"+{100 * check.limit:.2f}"
        failed = "not reached" if check.is_minimum else "exceeded"
        if check.threshold == "require_equivalence":
            failed = "not shown"
        result = "holds" if check.is_passed else failed
        rows.append(
            (
                check.threshold,
                "all" if check.kind is None else KIND_NAMES[check.kind],
                count(check.num_pages, "page") + ", " + count(check.num_documents, "document"),
                # What stands after the colon stands in the sentence above the table as well.
                check.reason.partition(":")[0] or measured_text(check),
                limit,
                result if check.is_conclusive else f"{result}, unsure",
            )
        )
    return Table(("Threshold", "On", "From", "Measured (95 %)", "Limit", "Result"), tuple(rows), 3)


def sensitive_groups_table(sensitivity: Sensitivity, assignment: Assignment, *, num_rows: int = 8) -> Table:
    """The groups that cost most in the smallest format, and what the plan gave them."""
    rows = [row for row in sensitivity.rows if row.score == assignment.score]
    smallest = min({row.precision for row in rows}, key=lambda precision: FORMATS[precision].bits_per_weight)
    ranked = sorted(
        (row for row in rows if row.precision == smallest), key=lambda row: (-row.mean, row.group)
    )
    sizes = {group.name: group.num_weights for group in sensitivity.groups}
    total = sum(sizes.values())
    found = tuple(
        (
            row.group,
            PRECISION_NAMES[assignment.groups[row.group]],
            f"{number(row.mean)} ± {number(row.standard_error)}",
            f"{sizes[row.group] / total:.1%}".replace("%", "\u202f%"),
        )
        for row in ranked[:num_rows]
        if row.group in assignment.groups
    )
    return Table(("Group", "Plan", f"Score in {PRECISION_NAMES[smallest]}", "Share of weights"), found, 2)


def weight_steps_table(rounding: Rounding) -> Table:
    """How often each step beyond rounding to nearest was kept, and how much it lowered the output error."""
    rows = []
    for precision in FORMATS:
        for step, name in _STEP_NAMES.items():
            tried = [
                found
                for group in rounding.groups
                if group.precision == precision
                for found in group.steps
                if found.step == step
            ]
            if tried:
                rows.append((PRECISION_NAMES[precision], name, *_step_numbers(tried)))
    header = ("Format", "Step", "Tried on groups", "Kept", "Median change of output error where kept")
    return Table(header, tuple(rows), 2)


def outliers_table(statistics: Statistics, *, num_rows: int = 5) -> Table:
    """The linears whose largest input channel stands out most, and dead channels."""
    ranked = sorted(
        statistics.linears,
        key=lambda linear: (-max(linear.text.outlier_ratio, linear.image.outlier_ratio), linear.name),
    )
    rows = tuple(
        (
            linear.name,
            f"{linear.text.outlier_ratio:.1f}",
            f"{linear.image.outlier_ratio:.1f}",
            number(linear.amax),
            f"{len(linear.text.dead_channels)} of {linear.in_features}",
        )
        for linear in ranked[:num_rows]
    )
    header = ("Input of", "Outlier ratio, text", "Outlier ratio, image", "Largest |x|", "Dead channels")
    return Table(header, rows)


def chain_table(report: Report) -> Table:
    """Every artefact with its digest and what it was made from."""
    rows = tuple(
        (
            link.artifact,
            link.sha256,
            ", ".join(f"{name} {digest[:12]}" for name, digest in link.inputs.items()),
        )
        for link in report.chain
    )
    return Table(("Artefact", "SHA-256", "Made from"), rows, 3)


def _error_names(report: Report) -> tuple[str, str]:
    """What the error rates are called: without ground truth they count disagreement with bf16."""
    return ("CER to bf16", "WER to bf16") if report.is_judged_by_model else ("CER", "WER")


def _kl(found: TextMetrics) -> str:
    if found.kl_interval is None or found.mean_kl is None:
        return nats(found.mean_kl)
    if found.kl_interval.low is None:
        return nats(found.mean_kl)
    return f"{nats(found.mean_kl)} ({interval_range(found.kl_interval, decimals=4)})"


def _step_numbers(tried: list[RoundingStep]) -> tuple[str, str, str]:
    kept = [step for step in tried if step.accepted]
    changes = [step.error_after / step.error_before - 1 for step in kept if step.error_before > 0]
    return str(len(tried)), str(len(kept)), change(median(changes)) if changes else NOTHING


def timings_table(timings: list[dict[str, Any]]) -> Table:
    """How long each stage took, in the order in which they ran."""
    rows = []
    for record in timings:
        counts = ", ".join(
            f"{value:,} {name.removeprefix('num_').replace('_', ' ')}"
            for name, value in record.items()
            if name not in ("stage", "seconds")
        )
        rows.append((str(record["stage"]), counts, f"{record['seconds']:.1f}"))
    return Table(("Stage", "Did", "Seconds"), tuple(rows), 2)
