"""Which groups the patterns of a recipe mean, and which precisions are then open to each.

Knows names and widths. Refuses a pattern that matches nothing, that splits a group or that touches the vision
side, so that a typing error is not silently another plan.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ocrquant.adapters.structure import Group, ModelMap
from ocrquant.errors import PatternError, ShapeError
from ocrquant.formats import FORMATS, Precision

__all__ = ["Ineligible", "PatternMatch", "SearchSpace", "match_patterns", "search_space"]


@dataclass(frozen=True, slots=True)
class PatternMatch:
    """What one pattern matched.

    Attributes:
        where: Key of the recipe that holds it.
        pattern: As written.
        linears: Decoder linears it means, those that stay bf16 anyway included.
    """

    where: str
    pattern: str
    linears: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ineligible:
    """A precision that a group cannot have.

    Attributes:
        group: Name of the group.
        precision: Which one.
        reason: Why.
    """

    group: str
    precision: Precision
    reason: str


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """What the search may choose from.

    Attributes:
        choices: Searchable group -> precisions open to it, at least one, most bits first.
        matches: What each pattern of the recipe matched.
        ineligible: Candidates that a group's width rules out.
    """

    choices: Mapping[str, tuple[Precision, ...]]
    matches: tuple[PatternMatch, ...]
    ineligible: tuple[Ineligible, ...]


def _matches(pattern: str, name: str) -> bool:
    # As compressed-tensors reads `re:`, from the start of the name.
    return bool(re.match(pattern[3:], name)) if pattern.startswith("re:") else fnmatchcase(name, pattern)


def _nearest(pattern: str, names: Iterable[str]) -> str:
    """Up to three names that resemble a pattern, those first that contain what it spells out."""
    words = re.sub(r"[^\w.]+|(?<!\w)\.|\.(?!\w)", " ", pattern.removeprefix("re:")).split()
    core = max(words, key=len, default="")
    names = list(dict.fromkeys(names))
    holding = [name for name in names if core and core in name]
    near = [*holding, *difflib.get_close_matches(core, names, n=3, cutoff=0.0)]
    return ", ".join(list(dict.fromkeys(near))[:3])


def match_patterns(model_map: ModelMap, patterns: Sequence[str], where: str) -> tuple[PatternMatch, ...]:
    """What each pattern matches among the names of groups and of their linears.

    Args:
        model_map: The model.
        patterns: Globs, or regular expressions after ``re:``, that must match from the start of a name.
        where: Key of the recipe, for messages.

    Raises:
        PatternError: A pattern matches nothing or a module of the vision side, or the patterns together mean
            some members of a group and not the others.
    """
    groups = (*model_map.groups, *model_map.kept_groups)
    owners = {linear.name: (linear.name, group.name) for group in groups for linear in group.linears}
    owners |= {name: (name, name) for name in model_map.kept if name not in owners}
    found = []
    for pattern in patterns:
        if vision := next((name for name in model_map.vision if _matches(pattern, name)), None):
            raise PatternError(
                f"{where}: {pattern!r}",
                expected="decoder linears or groups only",
                given=f"{vision} of the vision side, which always stays bf16",
                fix="write a narrower pattern, such as layers.*.mlp.down",
            )
        linears = tuple(n for n, names in owners.items() if any(_matches(pattern, name) for name in names))
        if not linears:
            names = [*(group.name for group in groups), *owners, *model_map.vision]
            raise PatternError(
                f"{where}: {pattern!r}",
                expected="a pattern that matches a linear or a group",
                given="one that matches nothing",
                fix=f"nearest names: {_nearest(pattern, names)}",
            )
        found.append(PatternMatch(where, pattern, linears))
    _refuse_split({linear for match in found for linear in match.linears}, groups, where)
    return tuple(found)


def _refuse_split(linears: set[str], groups: Iterable[Group], where: str) -> None:
    for group in groups:
        outside = [linear.name for linear in group.linears if linear.name not in linears]
        if outside and len(outside) < len(group.linears):
            raise PatternError(
                f"{where}: group {group.name}",
                expected="all of its linears or none, since they run as one matrix product",
                given=f"patterns that leave out {', '.join(outside)}",
                fix=f"write the name of the group, {group.name}",
            )


def _forced(
    model_map: ModelMap, keep_bf16: Sequence[str], force: Mapping[Precision, Sequence[str]]
) -> tuple[dict[str, tuple[Precision, str]], list[PatternMatch]]:
    """Group -> (its only precision, key of the recipe), and all matches."""
    owner = {linear.name: group.name for group in model_map.groups for linear in group.linears}
    wanted = [("search.keep_bf16", Precision.BF16, keep_bf16)]
    wanted += [(f"search.force.{precision}", precision, patterns) for precision, patterns in force.items()]
    settled: dict[str, tuple[Precision, str]] = {}
    matches: list[PatternMatch] = []
    for where, precision, patterns in wanted:
        matches += (found := match_patterns(model_map, patterns, where))
        for match in found:
            for linear in match.linears:
                if linear in model_map.kept and precision != Precision.BF16:
                    raise PatternError(
                        f"{where}: {match.pattern!r}",
                        expected="searchable linears",
                        given=f"{linear}, which stays bf16: {model_map.kept[linear]}",
                        fix="write a narrower pattern",
                    )
                if linear in model_map.kept:
                    continue
                before = settled.setdefault(owner[linear], (precision, where))
                if before[0] != precision:
                    raise PatternError(
                        f"{where}: {match.pattern!r}",
                        expected="one precision for each group",
                        given=f"{owner[linear]}, which {before[1]} makes {before[0]}",
                        fix="remove it from one of the two",
                    )
    return settled, matches


def search_space(
    model_map: ModelMap,
    candidates: Sequence[Precision],
    keep_bf16: Sequence[str] = (),
    force: Mapping[Precision, Sequence[str]] | None = None,
) -> SearchSpace:
    """The precisions open to every searchable group.

    Args:
        model_map: The model.
        candidates: Precisions that compete with bf16.
        keep_bf16: Patterns of linears that stay in bf16.
        force: Patterns of linears that get one precision.

    Raises:
        PatternError: See `match_patterns`; also a group that is given two precisions, or one that always
            stays bf16.
        ShapeError: A forced precision does not fit, or no group fits any candidate.
    """
    settled, matches = _forced(model_map, keep_bf16, force or {})
    allowed = [precision for precision in FORMATS if precision in candidates or precision == Precision.BF16]
    choices: dict[str, tuple[Precision, ...]] = {}
    ineligible = []
    for group in model_map.groups:
        reasons = {p: reason for p in FORMATS if (reason := group.reason_against(p)) is not None}
        if group.name in settled:
            precision, where = settled[group.name]
            if precision in reasons:
                raise ShapeError(
                    f"{where}: group {group.name}",
                    expected=f"widths that fit {precision}",
                    given=reasons[precision],
                    fix="leave the group to the search, or force another precision",
                )
            choices[group.name] = (precision,)
            continue
        ineligible += [Ineligible(group.name, p, reasons[p]) for p in allowed if p in reasons]
        choices[group.name] = tuple(p for p in allowed if p not in reasons)
    open_groups = [group for group in model_map.groups if group.name not in settled]
    if open_groups and all(choices[group.name] == (Precision.BF16,) for group in open_groups):
        raise ShapeError(
            f"{open_groups[0].name} and every other group",
            expected=f"a width that fits {' or '.join(candidates)}",
            given=ineligible[0].reason if ineligible else "none",
            fix="choose other candidates",
        )
    return SearchSpace(choices, tuple(matches), tuple(ineligible))
