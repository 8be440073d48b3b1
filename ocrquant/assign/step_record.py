"""What a decode step takes under a plan, as the plan's file states it.

Knows times. Does not choose anything.
"""

from __future__ import annotations

from collections.abc import Mapping

from ocrquant.artifacts import Sensitivity, StepRecord
from ocrquant.assign.narrow import slower_formats
from ocrquant.assign.problem import Problem
from ocrquant.assign.terms import KV_CACHE, Terms
from ocrquant.formats import FORMATS, Precision

__all__ = ["step_record"]


def step_record(
    sensitivity: Sensitivity, problem: Problem, precisions: Mapping[str, Precision], terms: Terms
) -> StepRecord | None:
    """Times of a plan, of everything in bf16, and what is to be known of the machine; None without one.

    Args:
        sensitivity: The scores, with every format that was open before the terms.
        problem: Groups and choices.
        precisions: The plan.
        terms: The terms, with the machine.

    Raises:
        RecipeError: The cost table lacks a time.
    """
    step = terms.step
    if step is None:
        return None
    cache = next((group for group in problem.groups if group.name == KV_CACHE), None)
    chosen = None if cache is None else cache.choice(precisions[KV_CACHE])
    kv_ns = 0 if chosen is None else chosen.step_ns
    plain_ns = sum(step.group_ns(group.shapes, Precision.BF16) for group in sensitivity.groups)
    if cache is not None:
        plain_ns += step.kv_ns(sensitivity.kv_cache[0].elements_per_token, Precision.BF16)
    return StepRecord(
        us=problem.totals(precisions).step_ns / 1000,
        kv_us=kv_ns / 1000,
        bf16_us=plain_ns / 1000,
        load=step.words,
        notes=_step_notes(sensitivity, terms, has_cache=cache is not None),
    )


def _step_notes(sensitivity: Sensitivity, terms: Terms, *, has_cache: bool) -> list[str]:
    step = terms.step
    assert step is not None, "there are times"
    present = {precision for group in sensitivity.groups for precision in group.precisions}
    notes = [step.timing.note(precision) for precision in FORMATS if precision in present]
    slower = [
        f"{group.name}: {why}" for group in sensitivity.groups for why in slower_formats(group, step).values()
    ]
    if slower:
        count = f"{len(slower)} choice{'s are' if len(slower) > 1 else ' is'}"
        notes.append(f"{count} slower there than a wider format, and never taken for speed ({slower[0]})")
    if step.load.context and not has_cache:
        notes.append("keys and values are not counted: sensitivity.json has no score of their cache")
    return [note for note in notes if note]
