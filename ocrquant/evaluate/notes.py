"""What a reader must know before trusting a number: one sentence each, only where it applies.

Knows results. Does not know how they are shown.
"""

from __future__ import annotations

from collections.abc import Sequence

from ocrquant.artifacts import (
    ArmReport,
    Assignment,
    Comparison,
    Equivalence,
    ExpertStatistics,
    GateCheck,
    Pareto,
    Sensitivity,
)
from ocrquant.evaluate.gate import FEW_DOCUMENTS, gate_notes
from ocrquant.evaluate.plan_notes import plan_notes
from ocrquant.evaluate.verdict import equivalence_notes
from ocrquant.evaluate.words import (
    KIND_NAMES,
    PRECISION_NAMES,
    bits,
    count,
    interval_range,
    nats,
    number,
    points,
    points_interval,
)
from ocrquant.formats import Precision

__all__ = ["report_notes"]


def report_notes(
    arms: Sequence[ArmReport],
    comparisons: Sequence[Comparison],
    gate: Sequence[GateCheck],
    equivalence: Equivalence | None,
    *,
    has_fp8_cache: bool,
    sensitivity: Sensitivity,
    assignment: Assignment,
    pareto: Pareto | None,
    experts: Sequence[ExpertStatistics] = (),
) -> list[str]:
    """All sentences, most important first."""
    base = arms[0]
    plan = next((arm for arm in arms if arm.name == "plan"), base)
    notes = _loss(plan, sensitivity, assignment, pareto)
    notes += plan_notes(assignment)
    notes += [note for item in comparisons if item.kind is None for note in _not_better(item)]
    notes += gate_notes(gate)
    notes += equivalence_notes(equivalence)
    documents = base.overall.num_documents
    if not gate and documents < FEW_DOCUMENTS:
        where = f"{count(base.overall.num_pages, 'page')} of {count(documents, 'document')}"
        notes.append(f"There are too few pages to trust an interval: {where}.")
    notes += [note for arm in arms[1:] for note in _broken_output(arm, base)]
    notes += [
        f"Uniform {PRECISION_NAMES[Precision(arm.name)]} holds no group in that format."
        for arm in arms[1:]
        if arm.name != "plan" and Precision(arm.name) not in arm.num_groups
    ]
    if has_fp8_cache:
        notes.append("All arms but bf16 keep the caches of full-attention layers in FP8.")
    return notes + _starved_experts(experts)


def _starved_experts(experts: Sequence[ExpertStatistics]) -> list[str]:
    """Whether the calibration pages told little of some experts."""
    total, starved = sum(len(layer.num_tokens) for layer in experts), sum(x.num_starved for x in experts)
    if not starved:
        return []
    return [
        f"{count(starved, 'expert')} of {total} saw few of the calibration pages' tokens. The scales of their"
        " inputs are those of all experts of their layer; their weights were rounded without GPTQ, as all "
        "experts' are."
    ]


def _loss(
    plan: ArmReport, sensitivity: Sensitivity, assignment: Assignment, pareto: Pareto | None
) -> list[str]:
    """Why the plan is worse than bf16, where it is beyond chance."""
    found = plan.overall.cer_increase
    if found is None or found.includes_zero or found.estimate < 0:
        return []
    parts = [f"The plan is worse than bf16 beyond chance, by {points_interval(found)} points of CER."]
    losses = {kind: m.cer_increase.estimate for kind, m in plan.by_kind.items() if m.cer_increase is not None}
    if len(losses) > 1:
        kind = max(losses, key=lambda kind: losses[kind])
        parts.append(f"Most is lost on {KIND_NAMES[kind]} ({points(losses[kind])}).")
    parts.append(_largest_parts(sensitivity, assignment))
    if pareto is not None:
        parts.append(_next_budget(assignment, pareto))
    return [" ".join(part for part in parts if part)]


def _largest_parts(sensitivity: Sensitivity, assignment: Assignment) -> str:
    """The groups that the scores blame."""
    losses = {
        row.group: row.mean
        for row in sensitivity.rows
        if row.score == assignment.score and assignment.groups.get(row.group) == row.precision
    }
    total = sum(max(loss, 0.0) for loss in losses.values())
    if not total > 0:
        return ""
    ranked = sorted(losses, key=lambda group: (-losses[group], group))[:3]
    named = ", ".join(
        f"{group} in {PRECISION_NAMES[assignment.groups[group]]} ({losses[group] / total:.0%})"
        for group in ranked
    )
    return f"By their scores, the largest shares are those of {named}."


def _next_budget(assignment: Assignment, pareto: Pareto) -> str:
    """What it would take to halve the predicted loss."""
    half = assignment.predicted_loss / 2
    better = [point for point in pareto.front if point.predicted_loss <= half]
    if not better:
        return ""
    smallest = min(better, key=lambda point: point.bits_per_weight)
    return (
        f"{bits(smallest.bits_per_weight)} bits per weight would halve the predicted loss "
        f"({number(assignment.predicted_loss)} at {bits(assignment.bits_per_weight)})."
    )


def _not_better(item: Comparison) -> list[str]:
    """Where the plan does not beat uniform NVFP4, which it is larger than."""
    if item.baseline != "nvfp4":
        return []
    found = []
    if item.kl is not None and item.kl.estimate >= 0:
        ends = interval_range(item.kl, decimals=4)
        found.append(f"The plan's KL is not below that of uniform NVFP4: {nats(item.kl.estimate)} ({ends}).")
    if item.cer is not None and item.cer.estimate >= 0:
        difference = points_interval(item.cer)
        found.append(f"The plan's CER is not below that of uniform NVFP4: {difference} points.")
    return found


def _broken_output(arm: ArmReport, base: ArmReport) -> list[str]:
    """Outputs that no average shows: loops, cut-off texts, logits that are no numbers."""
    name = "The plan" if arm.name == "plan" else f"Uniform {PRECISION_NAMES[Precision(arm.name)]}"
    found = []
    for what, field in (
        ("loops", "num_repetition_loops"),
        ("hits the token limit", "num_unfinished"),
        ("gives an empty text", "num_empty"),
    ):
        own, other = getattr(arm.overall, field), getattr(base.overall, field)
        if own > other:
            found.append(f"{name} {what} on {count(own, 'page')}, bf16 on {other}.")
    if arm.overall.num_nonfinite:
        pages = count(arm.overall.num_nonfinite, "page")
        found.append(f"{name} gives NaN or Inf on {pages}, which its mean KL leaves out.")
    return found
