"""From measurements to whole numbers, so that every later comparison is exact and the same on any machine.

Knows a sensitivity artefact. Scores are rounded up to a grid 2^60 times finer than the largest possible sum;
bits and bytes are whole already, times are rounded up to nanoseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import ceil, lcm

from ocrquant.artifacts import GroupRecord, KvCacheScore, Sensitivity, SensitivityRow
from ocrquant.artifacts.sensitivity import ScoreKind
from ocrquant.assign.kinds import kind_rows
from ocrquant.assign.problem import Choice, GroupChoices, Problem, nominal_bits, plan_score
from ocrquant.assign.terms import KV_CACHE, Terms
from ocrquant.cost import kv_bytes
from ocrquant.errors import ArtifactError
from ocrquant.formats import Precision

__all__ = ["build_problem"]

_GRID_BITS = 60
"""Sums of scores stay below 2^60 grid steps, so that differences of two sums fit a signed 64-bit number."""


def build_problem(
    sensitivity: Sensitivity, score: ScoreKind | None = None, terms: Terms | None = None
) -> Problem:
    """Turns measurements into whole numbers.

    A score below zero is noise, since both kinds are sums of squares or divergences: it counts as zero.

    Args:
        sensitivity: The measurements, narrowed to what is open; see `narrow`.
        score: Which of them; that of `plan_score` by default.
        terms: Machine, cache and limits of kinds; none by default.

    Raises:
        ArtifactError: A group has no score for a format that is open to it.
        PatternError: A limit names a kind that no group has.
        RecipeError: The cost table lacks a time.
    """
    score, terms = score or plan_score(sensitivity), terms or Terms()
    rows = {(row.group, row.precision): row for row in sensitivity.rows if row.score == score}
    records = sorted(sensitivity.groups, key=lambda group: group.name)
    open_rows = [_open_rows(group, rows, score) for group in records]
    cache = _cache_rows(sensitivity.kv_cache, terms)
    bits = [
        {precision: _bits(precision, row) * group.num_weights for precision, row in found.items()}
        for group, found in zip(records, open_rows, strict=True)
    ]
    bit = Fraction(1, lcm(*(value.denominator for found in bits for value in found.values())))
    worst = [max(map(_loss, found.values())) for found in open_rows]
    worst += [max(map(_loss, cache.values()))] if cache else []
    step = _grid_step(sum(worst, Fraction(0)))
    groups = [
        GroupChoices(
            name=group.name,
            kind=group.kind,
            num_weights=group.num_weights,
            choices=tuple(
                Choice(
                    precision=precision,
                    loss=ceil(_loss(row) / step),
                    bits=int(sizes[precision] / bit),
                    weight_bytes=_bf16_bytes(group) if row is None else row.weight_bytes,
                    row=row,
                    step_ns=0 if terms.step is None else terms.step.group_ns(group.shapes, precision),
                )
                for precision, row in found.items()
            ),
        )
        for group, found, sizes in zip(records, open_rows, bits, strict=True)
    ]
    if cache:
        groups.append(_cache_choices(sensitivity.kv_cache[0].elements_per_token, cache, step, terms))
    return Problem(
        score=score,
        groups=tuple(groups),
        loss_step=step,
        bit=bit,
        num_weights=sum(group.num_weights for group in groups),
        rows=kind_rows(groups, bit, terms),
    )


def _cache_rows(scores: Sequence[KvCacheScore], terms: Terms) -> dict[Precision, KvCacheScore | None]:
    """Formats open to keys and values; empty where their cache was not scored."""
    if not scores:
        return {}
    found: dict[Precision, KvCacheScore | None] = {Precision.BF16: None}
    found |= {Precision(score.precision): score for score in scores}
    if terms.kv_cache == "auto":
        return found
    settled = Precision(terms.kv_cache)
    return {settled: found[settled]} if settled in found else {}


def _cache_choices(
    elements_per_token: int, rows: Mapping[Precision, KvCacheScore | None], step: Fraction, terms: Terms
) -> GroupChoices:
    return GroupChoices(
        name=KV_CACHE,
        kind="",
        num_weights=0,
        choices=tuple(
            Choice(
                precision=precision,
                loss=ceil(_loss(row) / step),
                bits=0,
                weight_bytes=kv_bytes(elements_per_token, terms.counted_tokens, precision),
                row=row,
                step_ns=0 if terms.step is None else terms.step.kv_ns(elements_per_token, precision),
            )
            for precision, row in rows.items()
        ),
    )


def _open_rows(
    group: GroupRecord, rows: Mapping[tuple[str, Precision], SensitivityRow], score: ScoreKind
) -> dict[Precision, SensitivityRow | None]:
    found: dict[Precision, SensitivityRow | None] = {}
    for precision in sorted(group.precisions, key=lambda p: (-nominal_bits(p), p)):
        row = rows.get((group.name, precision))
        if precision is not Precision.BF16 and row is None:
            raise ArtifactError(
                f"{Sensitivity.FILE_NAME}: group {group.name}",
                expected=f"a {score} score in {precision}",
                given="none",
                fix="run the stage `sensitivity` again",
            )
        found[precision] = None if precision is Precision.BF16 else row
    return found


def _bits(precision: Precision, row: SensitivityRow | None) -> Fraction:
    return Fraction(nominal_bits(precision) if row is None else row.bits_per_weight)


def _bf16_bytes(group: GroupRecord) -> int:
    return int(group.num_weights * nominal_bits(Precision.BF16)) // 8


def _loss(row: SensitivityRow | KvCacheScore | None) -> Fraction:
    return Fraction(0) if row is None else max(Fraction(row.mean), Fraction(0))


def _grid_step(largest_sum: Fraction) -> Fraction:
    """The smallest power of two of which `largest_sum`, each of its terms rounded up, has fewer than 2^60."""
    if largest_sum == 0:
        return Fraction(1)
    step = Fraction(1)
    # One bit to spare for rounding up.
    while largest_sum >= step * 2 ** (_GRID_BITS - 1):
        step *= 2
    while largest_sum < step * 2 ** (_GRID_BITS - 2):
        step /= 2
    return step
