"""The parts of ``report.html`` that look beyond the plan: other budgets, and the pages behind a score.

Knows what stands in them. The pictures are those of the notebook.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan

from ocrquant.artifacts import Sensitivity
from ocrquant.assign import GroupChange, group_changes, with_more_bits
from ocrquant.evaluate import pictures
from ocrquant.evaluate.html_parts import figure, section, table
from ocrquant.evaluate.material import Material
from ocrquant.evaluate.tables import Table
from ocrquant.evaluate.theme import to_svg
from ocrquant.evaluate.words import MINUS, NOTHING, PRECISION_NAMES, byte_size, number

__all__ = ["MORE_BITS", "budget_section", "changes_table", "pages_behind_figure"]

MORE_BITS = 0.25
"""The step of a budget whose effect is listed."""

_LEAD = (
    "What the scores predict for each size: the line is the best plan there is, and no plan lies below it. "
    "Another budget scores nothing again."
)


def budget_section(material: Material) -> str:
    """The front with all named plans on it, and the groups that a little more budget would change."""
    if material.pareto is None or material.assignment is None or material.sensitivity is None:
        return ""
    drawn = pictures.pareto_front(material.pareto, material.assignment)
    more = with_more_bits(material.sensitivity, material.assignment, MORE_BITS, terms=material.terms)
    changes = group_changes(material.sensitivity, material.assignment, more)
    heading = f"<h3>With {MORE_BITS:g} bits a weight more</h3>"
    listed = table(changes_table(changes)) if changes else "<p>No group would change.</p>"
    picture = figure(to_svg(drawn, "front", "Predicted loss of the best plan at each size"))
    return section("Other budgets", picture, heading, listed, lead=_LEAD)


def pages_behind_figure(material: Material) -> str:
    """The pages behind the largest score that the plan could have paid; empty without scores by page."""
    if material.page_scores is None or material.sensitivity is None or not material.sensitivity.rows:
        return ""
    group, precision = _largest(material.sensitivity)
    drawn = pictures.pages_behind(material.page_scores, group, precision)
    return figure(to_svg(drawn, "pages-behind", f"Share of each page in the score of {group}"))


def changes_table(changes: Sequence[GroupChange]) -> Table:
    """One row a group, the largest gain first."""
    rows = [
        (
            change.group,
            PRECISION_NAMES[change.before],
            PRECISION_NAMES[change.after],
            _sign(change.extra_bytes) + byte_size(abs(change.extra_bytes)),
            NOTHING
            if isnan(change.extra_loss)
            else _sign(change.extra_loss) + number(abs(change.extra_loss)),
        )
        for change in changes
    ]
    header = ("Group", "Now", "Then", "Size", "Score, nats a token")
    return Table(header=header, rows=tuple(rows), num_text_columns=3)


def _sign(value: float) -> str:
    return "+" if value > 0 else MINUS if value < 0 else ""


def _largest(sensitivity: Sensitivity) -> tuple[str, str]:
    kind = sensitivity.plan_score
    row = max((row for row in sensitivity.rows if row.score == kind), key=lambda row: row.mean)
    return row.group, str(row.precision)
