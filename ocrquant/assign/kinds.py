"""Limits of kinds of groups as rows of whole numbers: shares of a format, and fewest bits.

Knows weights and bits. Does not know scores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from math import ceil, floor
from typing import Protocol

from ocrquant.assign.terms import Terms
from ocrquant.errors import PatternError
from ocrquant.formats import Precision

__all__ = ["KindRow", "kind_rows"]


class _Choice(Protocol):
    @property
    def precision(self) -> Precision: ...

    @property
    def bits(self) -> int: ...


class _Group(Protocol):
    @property
    def kind(self) -> str: ...

    @property
    def num_weights(self) -> int: ...

    @property
    def choices(self) -> Sequence[_Choice]: ...


@dataclass(frozen=True, slots=True)
class KindRow:
    """One limit: a sum over the chosen formats that may not exceed a number.

    Attributes:
        name: Key of the recipe.
        coefficients: A number for each choice of each group, in their order.
        at_most: The largest sum.
    """

    name: str
    coefficients: tuple[tuple[int, ...], ...]
    at_most: int


def kind_rows(groups: Sequence[_Group], bit: Fraction, terms: Terms) -> tuple[KindRow, ...]:
    """Rows for all limits of the terms.

    Args:
        groups: Groups and their choices.
        bit: What a unit of a choice's bits is worth.
        terms: The terms.

    Raises:
        PatternError: There is no group of a kind.
    """
    rows = []
    for kind, shares in terms.limits.items():
        num_weights = _weights_of(groups, kind, "assign.limits")
        for precision, share in shares.items():
            coefficients = _coefficients(groups, kind, partial(_weights_in, precision))
            at_most = floor(Fraction(repr(share)) * num_weights)
            rows.append(KindRow(f"assign.limits.{kind}.{precision}", coefficients, at_most))
    for kind, bits in terms.min_bits.items():
        num_weights = _weights_of(groups, kind, "assign.min_bits")
        least = ceil(Fraction(repr(bits)) * num_weights / bit)
        rows.append(KindRow(f"assign.min_bits.{kind}", _coefficients(groups, kind, _less_bits), -least))
    return tuple(rows)


def _weights_in(precision: Precision, group: _Group, choice: _Choice) -> int:
    return group.num_weights if choice.precision is precision else 0


def _less_bits(group: _Group, choice: _Choice) -> int:
    del group
    return -choice.bits


def _coefficients(
    groups: Sequence[_Group], kind: str, value: Callable[[_Group, _Choice], int]
) -> tuple[tuple[int, ...], ...]:
    return tuple(
        tuple(value(group, choice) if group.kind == kind else 0 for choice in group.choices)
        for group in groups
    )


def _weights_of(groups: Sequence[_Group], kind: str, where: str) -> int:
    sizes: Mapping[str, int] = {
        known: sum(group.num_weights for group in groups if group.kind == known)
        for known in sorted({group.kind for group in groups if group.kind})
    }
    if kind not in sizes:
        raise PatternError(
            f"{where}.{kind}", expected=f"one of {', '.join(sizes)}", given=kind, fix="correct the kind"
        )
    return sizes[kind]
