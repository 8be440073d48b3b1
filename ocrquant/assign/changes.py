"""What another budget would change: the groups that take another format, and what each gains or loses.

Knows scores and plans. Solves nothing itself: the other plan is asked for as any plan is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import isnan
from typing import TYPE_CHECKING

from ocrquant.artifacts import Assignment, Sensitivity
from ocrquant.assign.build import build_problem
from ocrquant.assign.stage import choose_formats
from ocrquant.assign.terms import Terms, terms_of
from ocrquant.formats import FORMATS, Precision
from ocrquant.recipe.sections import AssignSection, Budget

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["GroupChange", "changes_frame", "group_changes", "terms_of_size", "with_more_bits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupChange:
    """One group that two plans give different formats.

    Attributes:
        group: Its name.
        kind: What its linears do.
        block: Decoder block; None outside of them.
        before: Its format in the first plan.
        after: Its format in the second plan.
        extra_bytes: What the second format takes more on disk, scales included.
        extra_loss: What its score grows by, nats a token; NaN where it was edited to a format without one.
    """

    group: str
    kind: str
    block: int | None
    before: Precision
    after: Precision
    extra_bytes: int
    extra_loss: float


def terms_of_size(section: AssignSection) -> Terms:
    """The terms of a recipe that hold for a budget in bits: limits and settled groups.

    The machine is left out, whose cost table need not be at hand, and so are keys and values, which take no
    bits a weight.

    Args:
        section: How the plan is chosen.
    """
    return terms_of(section.model_copy(update={"target": None, "counted_cache": None}))


def with_more_bits(
    sensitivity: Sensitivity, assignment: Assignment, more_bits: float, *, terms: Terms | None = None
) -> Assignment:
    """The best plan within a budget of some bits a weight more, or less.

    It is the optimum of the scores alone: what a plan was edited or repaired to afterwards is not kept.

    Args:
        sensitivity: The scores.
        assignment: The plan to begin from: its budget where that is in bits, else the bits that it reaches.
        more_bits: Bits a weight to add.
        terms: Limits and settled groups, see `terms_of_size`; none by default.

    Raises:
        BudgetError: No plan is so small.
        ArtifactError: A score is missing.
        PatternError: A pattern or a kind of the terms matches nothing.
    """
    bits = assignment.budget.get("bits_per_weight", assignment.bits_per_weight)
    budget = Budget(bits_per_weight=bits + more_bits)
    return choose_formats(sensitivity, budget, assignment.inputs, terms=terms)


def group_changes(sensitivity: Sensitivity, before: Assignment, after: Assignment) -> list[GroupChange]:
    """The groups that differ between two plans, the largest fall of the score first.

    Args:
        sensitivity: The scores that both plans were made from.
        before: The first plan.
        after: The second plan; its kind of score is the one that is shown.

    Raises:
        ArtifactError: A score is missing.
    """
    problem = build_problem(sensitivity, after.score)
    choices = {group.name: group for group in problem.groups}
    found = []
    for record in sensitivity.groups:
        old, new = before.groups[record.name], after.groups[record.name]
        if old is new:
            continue
        pair = choices[record.name].choice(old), choices[record.name].choice(new)
        losses = [float("nan") if choice is None else problem.loss(choice.loss) for choice in pair]
        sizes = [_bytes(record.shapes, precision) for precision in (old, new)]
        found.append(
            GroupChange(
                group=record.name,
                kind=record.kind,
                block=record.block,
                before=old,
                after=new,
                extra_bytes=sizes[1] - sizes[0],
                extra_loss=losses[1] - losses[0],
            )
        )
    return sorted(found, key=lambda change: (isnan(change.extra_loss), change.extra_loss))


def changes_frame(changes: Sequence[GroupChange]) -> pd.DataFrame:
    """One row a group, with the columns of `GroupChange`."""
    import pandas as pd

    rows = [{**asdict(c), "before": str(c.before), "after": str(c.after)} for c in changes]
    return pd.DataFrame(rows, columns=list(GroupChange.__dataclass_fields__))


def _bytes(shapes: Sequence[tuple[int, int]], precision: Precision) -> int:
    return sum(FORMATS[precision].weight_bytes(*shape) for shape in shapes)
