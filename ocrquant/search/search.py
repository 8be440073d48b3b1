"""Scores, plan and pictures for any ``nn.Module`` with linears, from Python and without a configuration.

Knows the order of work. The result holds the same artefacts as a run folder, so everything that reads those,
pictures and solver included, reads it. Knows no file, no page and no Hugging Face model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from ocrquant.artifacts import Assignment, GroupRecord, Pareto, Sensitivity, SensitivityRow
from ocrquant.artifacts.sensitivity import ScoreKind
from ocrquant.assign import build_problem, choose_formats, pareto
from ocrquant.errors import ModelError, PagesError
from ocrquant.formats import FORMATS, Precision
from ocrquant.recipe import Budget
from ocrquant.search.linears import Groups, checked_groups, watch_linears
from ocrquant.search.outputs import Output, read_output
from ocrquant.search.rounded import RoundedModule, group_records, round_module
from ocrquant.search.scores import gradient_scores, measured_scores, undisturbed
from ocrquant.sensitivity.estimates import ratio_estimate
from ocrquant.simulate import apply_plan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pandas as pd

__all__ = ["SearchResult", "search"]

LossOrLogits: TypeAlias = Callable[[nn.Module, Any], Tensor]
MIN_BATCHES = 2


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
        assignment: The plan.
        pareto: What other budgets would give.
        left_out: Linears that stay as they are, with the reason; they count in no budget.
    """

    module: nn.Module
    sensitivity: Sensitivity
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
        assignment = choose_formats(self.sensitivity, _budget(budget), {})
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


def search(
    module: nn.Module,
    batches: Iterable[Any],
    loss_or_logits: LossOrLogits,
    *,
    budget: Budget | float,
    candidates: Sequence[Precision | str] = (Precision.NVFP4, Precision.FP8),
    groups: Callable[[Groups], Groups] | None = None,
    score: Literal["gradient", "measured", "both"] = "both",
) -> SearchResult:
    """Chooses a format for every linear of a module under a budget.

    Linears that read one tensor, or share a weight, must share a format; see `watch_linears`. The scores of a
    group in a format, everything else as it is:

    - where the function gives logits, the measured one is KL(module || quantized) in nats a prediction
      (``kl``);
    - where it gives losses, the mean absolute change of a loss, in the loss's own unit (``loss``);
    - ``gradient`` is half the squared product of output gradient and output error, a prediction or loss: for
      logits the KL to second order; for losses the same of the empirical Fisher matrix, which ranks groups
      where the loss is a negative log-likelihood. One loss a batch should then be the mean over equally many
      samples in each.

    The plan follows the measured score where there is one. Noise is that between batches.

    A group that is left in bf16 is left as it is, whatever its dtype, and counts 16 bits a weight. Weights
    are rounded to nearest. The module runs in evaluation mode and is afterwards as before.

    Args:
        module: A module with ``nn.Linear`` inside, on its device.
        batches: At least two; each is handed to the function as it is, several times.
        loss_or_logits: Takes the module and a batch; gives logits [..., vocabulary], losses [n] or a loss [].
        budget: What the plan may cost; a number is bits per weight. ``max_kl`` limits the measured score.
        candidates: Formats that compete with bf16.
        groups: Takes the conservative groups, name -> linears, and gives the groups to use instead; linears
            in none of them stay as they are.
        score: Which scores to find: gradients cost a backward pass a batch, measuring a forward pass a batch,
            group and format.

    Raises:
        BudgetError: The budget cannot be reached.
        ModelError: The module has no linear that can be quantized, two runs of one batch differ, or an output
            is not finite or of the wrong form.
        PagesError: There are fewer than two batches.
        ShapeError: No format fits any linear.
        WeightValueError: A weight holds NaN or Inf.
    """
    batches = list(batches)
    if len(batches) < MIN_BATCHES:
        expected = f"at least {MIN_BATCHES}, whose scatter is the noise of a score"
        raise PagesError("batches", expected=expected, given=len(batches), fix="pass more of them")
    precisions = [Precision(candidate) for candidate in candidates]
    with _reproducible(module):
        found = watch_linears(module, batches, lambda batch: loss_or_logits(module, batch))
        chosen = checked_groups(found, found.groups if groups is None else groups(found.groups))
        records = group_records(module, chosen, [p for p in precisions if p is not Precision.BF16])
        rounded = round_module(module, records, found.amax)
        scores = _Scores(score)
        for number, batch in enumerate(batches):
            scores.add(module, batch, number, loss_or_logits, rounded)
    sensitivity = Sensitivity(inputs={}, groups=records, rows=scores.rows(records))
    in_no_group = found.amax.keys() - {name for names in chosen.values() for name in names}
    left_out = found.left_out | dict.fromkeys(sorted(in_no_group), "in none of the caller's groups")
    assignment = choose_formats(sensitivity, _budget(budget), {})
    return SearchResult(
        module=module,
        sensitivity=sensitivity,
        assignment=assignment,
        pareto=pareto(sensitivity, assignment, {}),
        left_out=left_out,
        _rounded=rounded,
    )


class _Scores:
    """Sums of every score, batch by batch."""

    def __init__(self, score: Literal["gradient", "measured", "both"]) -> None:
        self._wanted = score
        self._counts: list[int] = []
        self._sums: dict[tuple[ScoreKind, str, Precision], list[float]] = {}
        self._is_logits: bool | None = None

    def add(
        self,
        module: nn.Module,
        batch: Any,
        number: int,
        loss_or_logits: LossOrLogits,
        rounded: RoundedModule,
    ) -> None:
        """Scores everything on one batch."""

        def run() -> Output:
            return read_output(loss_or_logits(module, batch), is_logits=self._is_logits)

        with torch.no_grad():
            output = run()
            if number == 0 and output.distance(run()) > 0:
                fix = "make the function give the same for the same batch"
                given = "others at the second run of a batch"
                raise ModelError("output of the function", expected="the same values", given=given, fix=fix)
        self._is_logits = output.is_logits
        self._counts.append(output.count)
        if self._wanted != "measured":
            self._keep("gradient", gradient_scores(module, run, rounded.linears, number))
        if self._wanted != "gradient":
            kind: ScoreKind = "kl" if output.is_logits else "loss"
            self._keep(kind, measured_scores(module, run, rounded.linears))

    def _keep(self, kind: ScoreKind, sums: Mapping[tuple[str, Precision], float]) -> None:
        for (group, precision), value in sums.items():
            self._sums.setdefault((kind, group, precision), []).append(value)

    def rows(self, groups: Sequence[GroupRecord]) -> list[SensitivityRow]:
        """A row for each score, in the order in which they were found."""
        shapes = {group.name: group.shapes for group in groups}
        rows = []
        for (kind, group, precision), sums in self._sums.items():
            estimate = ratio_estimate(sums, self._counts)
            row = FORMATS[precision]
            rows.append(
                SensitivityRow(
                    group=group,
                    precision=precision,
                    score=kind,
                    is_measured=kind != "gradient",
                    mean=estimate.mean,
                    standard_error=estimate.standard_error,
                    num_pages=len(sums),
                    num_tokens=sum(self._counts),
                    bits_per_weight=row.bits_per_weight,
                    weight_bytes=sum(row.weight_bytes(*shape) for shape in shapes[group]),
                )
            )
        return rows


@contextmanager
def _reproducible(module: nn.Module) -> Iterator[None]:
    with undisturbed(module), torch.random.fork_rng():
        yield


@contextmanager
def _applied(module: nn.Module, rounded: RoundedModule, groups: Mapping[str, Precision]) -> Iterator[None]:
    fast_path = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as undo:
        undo.callback(torch.backends.mha.set_fastpath_enabled, fast_path)
        torch.backends.mha.set_fastpath_enabled(False)
        undo.enter_context(apply_plan(module, rounded.plan(groups)))
        yield


def _budget(budget: Budget | float) -> Budget:
    return budget if isinstance(budget, Budget) else Budget(bits_per_weight=float(budget))
