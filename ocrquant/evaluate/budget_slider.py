"""A budget to drag in Jupyter, and what the plan becomes at each.

Works in three places: with a live kernel and ipywidgets as a slider; in a page that was saved or rendered,
where nothing can be dragged, as a picture; and from code, by `BudgetSlider.at`. Knows scores and plans.
Solves at every move, which takes milliseconds and no model.
"""

from __future__ import annotations

import base64
from collections.abc import Collection
from math import ceil
from typing import Any

from matplotlib.figure import Figure

from ocrquant.artifacts import Assignment, Sensitivity
from ocrquant.assign import Terms, build_problem, changes_frame, choose_formats, group_changes, narrow
from ocrquant.evaluate.layer_pictures import assignment_strip
from ocrquant.evaluate.theme import to_png
from ocrquant.evaluate.words import bits, byte_size, number
from ocrquant.recipe.sections import Budget

__all__ = ["BudgetSlider"]

STEP_BITS = 0.05
_WIDGET = "application/vnd.jupyter.widget-view+json"
_DPI = 110


class BudgetSlider:
    """Shows itself where it is the last value of a cell.

    Args:
        sensitivity: The scores.
        assignment: The plan that others are compared with, and where the slider begins.
        terms: Limits and settled groups, see `terms_of_size`; none by default.

    Attributes:
        least_bits: Smallest budget, in hundredths of a bit a weight.
        most_bits: Budget within which everything stays in the widest format that is open to it.
    """

    def __init__(
        self, sensitivity: Sensitivity, assignment: Assignment, *, terms: Terms | None = None
    ) -> None:
        self._sensitivity, self._assignment, self._terms = sensitivity, assignment, terms or Terms()
        problem = build_problem(narrow(sensitivity, self._terms, "bits_per_weight"), assignment.score)
        least = sum(min(choice.bits for choice in group.choices) for group in problem.groups)
        most = sum(max(choice.bits for choice in group.choices) for group in problem.groups)
        self.least_bits = _rounded_up(problem.bits_per_weight(least))
        self.most_bits = _rounded_up(problem.bits_per_weight(most))
        self._first_bits = assignment.budget.get("bits_per_weight", _rounded_up(assignment.bits_per_weight))
        self._widget: Any = None

    def at(self, bits_per_weight: float) -> Assignment:
        """The best plan within a budget.

        Raises:
            BudgetError: No plan is so small.
        """
        budget = Budget(bits_per_weight=bits_per_weight)
        return choose_formats(self._sensitivity, budget, self._assignment.inputs, terms=self._terms)

    def words(self, plan: Assignment) -> str:
        """One sentence about a plan: its size, what it is predicted to lose, how much of it is different."""
        num_changed = len(group_changes(self._sensitivity, self._assignment, plan))
        differing = f"{num_changed} group{'' if num_changed == 1 else 's'} differ from the plan"
        size = f"{bits(plan.bits_per_weight)} bits a weight, {byte_size(plan.weight_bytes)}"
        return f"{size}, predicted loss {number(plan.predicted_loss)}; {differing}."

    def picture(self, plan: Assignment) -> Figure:
        """The strip of a plan."""
        return assignment_strip(plan, self._sensitivity)

    @property
    def widget(self) -> Any:
        """The slider with its picture and the table of changed groups, as an ``ipywidgets.VBox``.

        Raises:
            ModuleNotFoundError: ipywidgets is not installed.
        """
        if self._widget is None:
            self._widget = self._build()
        return self._widget

    def _build(self) -> Any:
        import ipywidgets

        slider = ipywidgets.FloatSlider(
            value=min(max(self._first_bits, self.least_bits), self.most_bits),
            min=self.least_bits,
            max=self.most_bits,
            step=STEP_BITS,
            description="bits a weight",
            continuous_update=False,
            readout_format=".2f",
            style={"description_width": "initial"},
            layout={"width": "36em"},
        )
        sentence, table = ipywidgets.HTML(), ipywidgets.HTML()
        image = ipywidgets.Image(format="png")

        def show(bits_per_weight: float) -> None:
            plan = self.at(bits_per_weight)
            sentence.value = self.words(plan)
            image.value = to_png(self.picture(plan), dpi=_DPI)
            frame = changes_frame(group_changes(self._sensitivity, self._assignment, plan))
            table.value = frame.to_html(index=False, float_format=number) if len(frame) else ""

        show(slider.value)
        slider.observe(lambda change: show(change["new"]), names="value")
        return ipywidgets.VBox([slider, sentence, image, table])

    def _repr_mimebundle_(
        self, include: Collection[str] | None = None, exclude: Collection[str] | None = None
    ) -> dict[str, Any]:
        """Slider, picture and sentence: a front end takes the first of them that it can show."""
        plan = self.at(max(self._first_bits, self.least_bits))
        bundle: dict[str, Any] = {
            "text/plain": self.words(plan),
            "image/png": base64.b64encode(to_png(self.picture(plan), dpi=_DPI)).decode(),
        }
        try:
            live = self.widget._repr_mimebundle_()
        except ModuleNotFoundError:
            return bundle
        if live and _WIDGET in live:
            bundle[_WIDGET] = live[_WIDGET]
        return bundle


def _rounded_up(bits_per_weight: float) -> float:
    """Hundredths of a bit, so that what a plan reaches is a budget that it fits."""
    return ceil(bits_per_weight * 100) / 100
