"""Which formats stay open to a group under the terms of a search, before anything is solved.

Knows names, patterns and times. Does not know scores.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from ocrquant.artifacts import GroupRecord, Sensitivity
from ocrquant.artifacts.assignment import BudgetKind
from ocrquant.assign.terms import Terms
from ocrquant.cost import StepCost
from ocrquant.errors import PatternError
from ocrquant.formats import FORMATS, Precision

__all__ = ["narrow", "slower_formats"]


def narrow(sensitivity: Sensitivity, terms: Terms, kind: BudgetKind) -> Sensitivity:
    """The same scores with the formats that the terms leave open.

    Under a budget of time a format that is slower than a wider one is closed: it would lose characters for
    nothing.

    Args:
        sensitivity: The scores.
        terms: The terms.
        kind: What the budget limits.

    Raises:
        PatternError: A pattern matches no group, a format is forced that is not open, two are forced, or none
            is left.
        RecipeError: The cost table lacks a time.
    """
    forced = _settled(sensitivity.groups, terms.force, "assign.force")
    closed = _settled(sensitivity.groups, terms.forbid, "assign.forbid")
    groups = []
    for group in sensitivity.groups:
        narrowed = _forbid(_force(group, forced[group.name]), closed[group.name])
        if kind == "step_us" and terms.step is not None:
            narrowed = _without_slower(narrowed, terms.step)
        groups.append(narrowed)
    if groups == sensitivity.groups:
        return sensitivity
    is_open = {(group.name, precision) for group in groups for precision in group.precisions}
    rows = [row for row in sensitivity.rows if (row.group, row.precision) in is_open]
    return sensitivity.model_copy(update={"groups": groups, "rows": rows})


def slower_formats(group: GroupRecord, step: StepCost) -> dict[Precision, str]:
    """Formats of a group that take longer than a wider one, and why, in words.

    Args:
        group: The group with what is open to it.
        step: Times of the machine.

    Raises:
        RecipeError: The cost table lacks a time.
    """
    times = {precision: step.group_ns(group.shapes, precision) for precision in group.precisions}
    found = {}
    for precision, time in times.items():
        wider = [p for p in times if _bits(p) > _bits(precision) and times[p] < time]
        if wider:
            best = min(wider, key=lambda p: (times[p], p))
            there = f"{time / 1000:.4g} us there, {best} {times[best] / 1000:.4g}"
            found[precision] = f"{precision} takes {there}"
    return found


def _without_slower(group: GroupRecord, step: StepCost) -> GroupRecord:
    slower = slower_formats(group, step)
    return _only(group, [p for p in group.precisions if p not in slower], "; ".join(slower.values()))


def _settled(
    groups: Sequence[GroupRecord], patterns: Mapping[Precision, Sequence[str]], where: str
) -> dict[str, dict[Precision, str]]:
    """Group -> format -> the pattern that names it."""
    found: dict[str, dict[Precision, str]] = {group.name: {} for group in groups}
    for precision, listed in patterns.items():
        for pattern in listed:
            names = [group.name for group in groups if _matches(pattern, group)]
            if not names:
                raise PatternError(
                    f"{where}.{precision}: {pattern!r}",
                    expected="a pattern that matches a group of sensitivity.json",
                    given="one that matches nothing",
                    fix=f"write for example {groups[0].name}",
                )
            for name in names:
                found[name][precision] = f"{where}.{precision} says {pattern!r}"
    return found


def _matches(pattern: str, group: GroupRecord) -> bool:
    names = (group.name, *group.linears)
    if pattern.startswith("re:"):
        return any(re.match(pattern[3:], name) for name in names)
    return any(fnmatchcase(name, pattern) for name in names)


def _force(group: GroupRecord, forced: Mapping[Precision, str]) -> GroupRecord:
    if not forced:
        return group
    precision, reason = next(iter(forced.items()))
    if len(forced) > 1:
        given = " and ".join(forced.values())
        raise PatternError(group.name, expected="one forced format", given=given, fix="remove one of the two")
    if precision not in group.precisions:
        open_to_it = ", ".join(group.precisions)
        fix = "force another format"
        raise PatternError(f"{group.name}: {reason}", expected=f"one of {open_to_it}", fix=fix)
    return _only(group, [precision], reason)


def _forbid(group: GroupRecord, closed: Mapping[Precision, str]) -> GroupRecord:
    left = [precision for precision in group.precisions if precision not in closed]
    if not left:
        given = " and ".join(closed.values())
        raise PatternError(group.name, expected="a format that is left", given=given, fix="forbid fewer")
    return _only(group, left, "; ".join(reason for p, reason in closed.items() if p in group.precisions))


def _only(group: GroupRecord, precisions: list[Precision], reason: str) -> GroupRecord:
    if precisions == group.precisions:
        return group
    reasons = "; ".join(text for text in (group.reason, reason) if text)
    return group.model_copy(update={"precisions": precisions, "reason": reasons})


def _bits(precision: Precision) -> float:
    return FORMATS[precision].bits_per_weight
