"""Scores, plan and pictures for any ``nn.Module`` with linears, from Python and without a configuration.

Knows the order of work. The result holds the same artefacts as a run folder, so everything that reads those,
pictures and solver included, reads it. Knows no file, no page and no Hugging Face model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from ocrquant.artifacts import (
    GroupRecord,
    PageScoreRow,
    PageScores,
    ScoredPage,
    Sensitivity,
    SensitivityRow,
)
from ocrquant.assign import choose_formats, pareto
from ocrquant.errors import BudgetError, ModelError, PagesError, RecipeError
from ocrquant.formats import FORMATS, Precision
from ocrquant.recipe import Budget
from ocrquant.search.linears import Groups, checked_groups, watch_linears
from ocrquant.search.outputs import Output, read_output
from ocrquant.search.result import SearchResult, as_budget
from ocrquant.search.rounded import RoundedModule, group_records, round_module
from ocrquant.search.scores import gradient_scores, measured_scores, undisturbed
from ocrquant.sensitivity.estimates import ratio_estimate

__all__ = ["search"]

LossOrLogits: TypeAlias = Callable[[nn.Module, Any], Tensor]
MIN_BATCHES = 2

_Kind: TypeAlias = Literal["gradient", "kl", "loss"]


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
        BudgetError: The budget cannot be reached, limits a time, or a measured score that is not asked for.
        ModelError: The module has no linear that can be quantized, two runs of one batch differ, or an output
            is not finite or of the wrong form.
        PagesError: There are fewer than two batches.
        RecipeError: There is no candidate below bf16, or one is no format.
        ShapeError: No format fits any linear.
        WeightValueError: A weight holds NaN or Inf.
    """
    batches = list(batches)
    if len(batches) < MIN_BATCHES:
        expected = f"at least {MIN_BATCHES}, whose scatter is the noise of a score"
        raise PagesError("batches", expected=expected, given=len(batches), fix="pass more of them")
    limit, precisions = as_budget(budget), _below_bf16(candidates)
    if limit.kind == "max_kl" and score == "gradient":
        fix = 'ask for score="measured" or "both"'
        raise BudgetError("budget.max_kl", expected="measured scores", given="gradients", fix=fix)
    with _reproducible(module):
        found = watch_linears(module, batches, lambda batch: loss_or_logits(module, batch))
        chosen = checked_groups(found, found.groups if groups is None else groups(found.groups))
        records = group_records(module, chosen, precisions)
        rounded = round_module(module, records, found.amax)
        scores = _Scores(score)
        for number, batch in enumerate(batches):
            scores.add(module, batch, number, loss_or_logits, rounded)
    sensitivity = Sensitivity(inputs={}, groups=records, rows=scores.rows(records))
    in_no_group = found.amax.keys() - {name for names in chosen.values() for name in names}
    left_out = found.left_out | dict.fromkeys(sorted(in_no_group), "in none of the caller's groups")
    assignment = choose_formats(sensitivity, limit, {})
    return SearchResult(
        module=module,
        sensitivity=sensitivity,
        page_scores=scores.by_batch(),
        assignment=assignment,
        pareto=pareto(sensitivity, assignment, {}),
        left_out=left_out,
        _rounded=rounded,
    )


def _below_bf16(candidates: Sequence[Precision | str]) -> list[Precision]:
    known = [str(precision) for precision in Precision if precision is not Precision.BF16]
    found = [str(candidate) for candidate in dict.fromkeys(candidates) if candidate != Precision.BF16]
    if not found or not set(found) <= set(known):
        given = ", ".join(found) or "none"
        fix = "name what competes with bf16"
        raise RecipeError("candidates", expected=f"some of {', '.join(known)}", given=given, fix=fix)
    return [Precision(name) for name in found]


class _Scores:
    """Sums of every score, batch by batch."""

    def __init__(self, score: Literal["gradient", "measured", "both"]) -> None:
        self._wanted = score
        self._counts: list[int] = []
        self._sums: dict[tuple[_Kind, str, Precision], list[float]] = {}
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
            kind: _Kind = "kl" if output.is_logits else "loss"
            self._keep(kind, measured_scores(module, run, rounded.linears))

    def _keep(self, kind: _Kind, sums: Mapping[tuple[str, Precision], float]) -> None:
        for (group, precision), value in sums.items():
            self._sums.setdefault((kind, group, precision), []).append(value)

    def by_batch(self) -> PageScores:
        """The scores before they are averaged."""
        rows = [
            PageScoreRow(group=group, precision=precision, score=kind, sums=sums)
            for (kind, group, precision), sums in self._sums.items()
        ]
        batches = enumerate(self._counts)
        pages = [ScoredPage(id=f"batch {number}", num_tokens=count) for number, count in batches]
        return PageScores(inputs={}, pages=pages, rows=rows)

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
