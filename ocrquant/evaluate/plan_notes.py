"""What the report says of how a plan was chosen: time of a step, and what measuring the plan changed.

Knows the plan's file and words. Knows no model.
"""

from __future__ import annotations

from ocrquant.artifacts import Assignment, MeasuredKl, RepairRecord, StepRecord
from ocrquant.evaluate.words import count

__all__ = ["plan_notes"]

_MICROSECONDS = "µs"


def plan_notes(assignment: Assignment) -> list[str]:
    """Sentences; none where neither a machine nor a repair was asked for."""
    notes = [] if assignment.step is None else _step(assignment.step)
    return notes + ([] if assignment.repair is None else [_repair(assignment.repair)])


def _step(step: StepRecord) -> list[str]:
    parts = f", {step.kv_us:.4g} of it for keys and values" if step.kv_us else ""
    first = (
        f"What the plan decides of a decode step takes {step.us:.4g} {_MICROSECONDS}{parts}, "
        f"{step.bf16_us:.4g} {_MICROSECONDS} in bf16: {step.load}."
    )
    return [first, *(f"{note[:1].upper()}{note[1:]}." for note in step.notes)]


def _repair(repair: RepairRecord) -> str:
    kept = sum(swap.is_kept for swap in repair.swaps)
    pages, predicted = count(repair.num_pages, "scored page"), repair.before.predicted
    text = (
        f"The plan of least sum was measured as a whole on {pages}: "
        f"{_measured(repair.before)} nats a token, predicted {predicted:.3g}. "
    )
    tried = count(len(repair.swaps), "swap")
    if not kept:
        return text + f"None of {tried} lowered it by more than its noise."
    return text + f"{kept} of {tried} lowered it to {_measured(repair.after)} on the same pages."


def _measured(kl: MeasuredKl) -> str:
    return f"{kl.measured:.3g} ± {kl.standard_error:.2g}"
