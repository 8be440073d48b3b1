"""A table as text, before anybody renders it. Knows no markup and no report."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Table"]


@dataclass(frozen=True, slots=True)
class Table:
    """Text in rows.

    Attributes:
        header: Heads of the columns.
        rows: Cells, as many a row as there are heads.
        num_text_columns: So many columns from the left are words; the others are numbers, aligned right.
        strong: Rows to stress.
        groups: Rows that begin a new group.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    num_text_columns: int = 1
    strong: frozenset[int] = field(default=frozenset())
    groups: frozenset[int] = field(default=frozenset())
