"""What a search found: the artefacts of a run folder, and the module to put a plan into.

Knows artefacts and rounded weights. Does not know how anything was scored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from math import isfinite
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ocrquant.artifacts import Assignment, PageScores, Pareto, Sensitivity
from ocrquant.assign import build_problem, choose_formats, pareto
from ocrquant.errors import BudgetError
from ocrquant.formats import Precision
from ocrquant.recipe import Budget
from ocrquant.search.rounded import RoundedModule
from ocrquant.simulate import apply_plan

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["SearchResult", "as_budget"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """What `search` found.

    The artefacts are those of a run folder, and whatever reads those takes them as they are:
    ``pictures.sensitivity_heat_map(result.sensitivity)``, ``explain(result.sensitivity, result.assignment,
    group)``.

    Attributes:
        module: The module, as it was given.
        sensitivity: Scores of all groups in all formats; ``num_pages`` counts batches, ``num_tokens``
            predictions or losses.
        page_scores: The same scores batch by batch, for ``pictures.pages_behind``.
        assignment: The plan.
        pareto: What other budgets would give.
        left_out: Linears that stay as they are, with the reason; they count in no budget.
    """

    module: nn.Module
    sensitivity: Sensitivity
    page_scores: PageScores
    assignment: Assignment
    pareto: Pareto
    left_out: Mapping[str, str]
    _rounded: RoundedModule

    def to_frame(self) -> pd.DataFrame:
        """The frame of `Sensitivity.to_frame`, and whether the plan takes the row's format: ``chosen``."""
        frame = self.sensitivity.to_frame()
        plan = self.assignment.groups
        frame["chosen"] = [plan[row.group] == row.precision for row in frame.itertuples()]
        return frame

    def with_budget(self, budget: Budget | float) -> SearchResult:
        """The best plan within another budget; nothing is scored again.

        Args:
            budget: The budget; a number is bits per weight.

        Raises:
            BudgetError: The budget cannot be reached.
        """
        assignment = choose_formats(self.sensitivity, as_budget(budget), {})
        return replace(self, assignment=assignment, pareto=pareto(self.sensitivity, assignment, {}))

    def with_plan(self, groups: Mapping[str, Precision]) -> SearchResult:
        """The same with a plan of the caller's own, for `apply` and the pictures.

        Args:
            groups: Format of each group.

        Raises:
            KeyError: A group is missing, or a format is not open to it.
        """
        problem = build_problem(self.sensitivity, self.assignment.score)
        totals = problem.totals(groups)
        changed = {
            "groups": dict(groups),
            "predicted_loss": problem.loss(totals.loss),
            "bits_per_weight": problem.bits_per_weight(totals.bits),
            "weight_bytes": totals.weight_bytes,
        }
        return replace(self, assignment=self.assignment.model_copy(update=changed))

    def apply(self) -> AbstractContextManager[None]:
        """Quantizes the module by the plan for the length of a ``with`` block: weights and activations.

        Afterwards every module and bit is as before.
        """
        return _applied(self.module, self._rounded, self.assignment.groups)

    def packed_state_dict(self) -> dict[str, Tensor]:
        """The module's state with the plan's weights packed, under the names of compressed-tensors.

        A quantized linear ``a`` has ``a.weight_packed``, ``a.weight_scale``, ``a.weight_global_scale`` and
        ``a.input_global_scale`` (NVFP4), or ``a.weight`` and ``a.weight_scale`` (FP8); everything else is as
        in ``module.state_dict()``.
        """
        packed = self._rounded.pack(self.assignment.groups)
        quantized = self._rounded.plan(self.assignment.groups)
        state = self.module.state_dict()
        kept = {n: t for n, t in state.items() if n.removesuffix(".weight") not in quantized}
        return kept | packed


@contextmanager
def _applied(module: nn.Module, rounded: RoundedModule, groups: Mapping[str, Precision]) -> Iterator[None]:
    fast_path = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as undo:
        undo.callback(torch.backends.mha.set_fastpath_enabled, fast_path)
        torch.backends.mha.set_fastpath_enabled(False)
        undo.enter_context(apply_plan(module, rounded.plan(groups)))
        yield


def as_budget(budget: Budget | float) -> Budget:
    """A number is bits per weight.

    Raises:
        BudgetError: It is no positive finite number, or limits a time, which no machine was named for.
    """
    if not isinstance(budget, Budget) and not (isfinite(budget) and budget > 0):
        raise BudgetError("budget", expected="a positive number", given=budget, fix="state bits a weight")
    found = budget if isinstance(budget, Budget) else Budget(bits_per_weight=float(budget))
    if found.kind == "step_us":
        expected = "bits_per_weight, weight_bytes or max_kl"
        raise BudgetError("budget", expected=expected, given="step_us", fix="limit a size or a loss")
    return found
