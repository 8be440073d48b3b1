"""What scores cost: screened ones, and measured ones from the changed layer on, against whole passes.

The plain way runs the whole model, vision encoder and all, for every group, format and batch, and keeps only
the logits of the unchanged model. All ways score the same pages of a run folder with the same rounded
weights, in float32. Plans from each are then measured as a whole on these pages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal

import torch
from pydantic import Field

from ocrquant.adapters.model import DocumentModel, load_model
from ocrquant.adapters.patterns import search_space
from ocrquant.artifacts import GroupRecord, PageSet, PartialStage, Rounding, Sensitivity, SensitivityRow
from ocrquant.assign import build_problem, solve
from ocrquant.assign.grid import grid_plans
from ocrquant.bench.pages import CROPS
from ocrquant.bench.report import BenchSettings, Goal, Report
from ocrquant.bench.timing import median_interval, ratio
from ocrquant.formats import FORMATS, Precision
from ocrquant.metrics.divergence import kl_from_logits
from ocrquant.pages import Page, from_record
from ocrquant.sensitivity.batches import choose_pages, encode, plan_batches
from ocrquant.sensitivity.candidates import Candidate, Change, RoundedCandidates, candidates_of, group_records
from ocrquant.sensitivity.choices import ChoiceScores
from ocrquant.sensitivity.estimates import ratio_estimate
from ocrquant.sensitivity.precision import in_float32
from ocrquant.sensitivity.scorer import Scorer
from ocrquant.sensitivity.setup import RESIDENT_BYTES
from ocrquant.simulate import apply_plan, rounded_smoothing

__all__ = ["Settings", "run"]

Positive = Annotated[int, Field(ge=1)]
PLAIN, MEASURED, SCREENED = "a whole pass for each choice", "measured", "screened"
MAX_TIME_SHARE = 1 / 3
MAX_KL_RATIO = 1.02


class Settings(BenchSettings):
    """What is scored.

    Attributes:
        run: Run folder with the rounded weights of a model.
        model: The model that it was made from.
        source: Its pages.
        pages: How many to score on.
        batch_size: Pages at once.
        bits: Budgets whose plans are compared, bits a weight.
    """

    run: Path = Path("runs/quickstart")
    model: str = "pico"
    source: Path = CROPS
    pages: Annotated[int, Field(ge=2)] = 32
    batch_size: Positive = 16
    bits: tuple[float, ...] = (5.0, 5.5, 6.0, 7.0)


@dataclass(frozen=True, slots=True)
class _Case:
    """A model ready to be scored."""

    document: DocumentModel
    rounded: RoundedCandidates
    groups: list[GroupRecord]
    candidates: list[Candidate]
    batches: list[list[Page]]

    @contextmanager
    def scorer(self) -> Iterator[Scorer]:
        """One that knows nothing yet."""
        with TemporaryDirectory() as folder:
            partial = PartialStage(Path(folder) / "scores", {})
            scorer = Scorer(self.document, self.rounded, self.candidates, partial, RESIDENT_BYTES)
            scorer.add(self.batches)
            yield scorer


def run(settings: Settings, repeats: int) -> Report:
    """Scores in every way in turn, then compares the plans."""
    report = Report("sensitivity", settings, repeats)
    with ExitStack() as stack:
        case = _open(settings, stack)
        arms: dict[str, Callable[[], Sensitivity]] = {
            PLAIN: lambda: _plain(case),
            MEASURED: lambda: _ours(case, "kl"),
            SCREENED: lambda: _ours(case, "screened"),
        }
        seconds: dict[str, list[float]] = {name: [] for name in arms}
        found: dict[str, Sensitivity] = {}
        for number in range(repeats):
            order = list(arms)[number % len(arms) :] + list(arms)[: number % len(arms)]
            for name in order:
                begin = time.process_time()
                found[name] = arms[name]()
                seconds[name].append(time.process_time() - begin)
        plans = _plans(case, found, settings.bits)
    for name in arms:
        report.results[name] = {
            "cpu_seconds": median_interval(seconds[name]),
            "share_of_plain": ratio(seconds[name], seconds[PLAIN]),
            "choices_measured": sum(row.is_measured for row in found[name].rows),
            "choices": len(case.candidates),
        }
    report.results["plans"] = plans
    report.goals = [
        Goal(
            "CPU time of screened scores, as a share of the plain way",
            ratio(seconds[SCREENED], seconds[PLAIN]),
            at_most=MAX_TIME_SHARE,
        ),
        *(
            Goal(
                f"measured KL of the plan from screened scores over that from plain ones, {name}",
                kl[SCREENED] / kl[PLAIN],
                at_most=MAX_KL_RATIO,
            )
            for name, kl in plans.items()
        ),
    ]
    report.notes = [
        "CPU seconds of the process: on a busy machine they vary less than the clock",
        "plans are measured on the pages that were scored: the question is what screening loses, not what a "
        "plan costs on other pages",
        "no ceiling: the ways do different work",
    ]
    return report


def _open(settings: Settings, stack: ExitStack) -> _Case:
    """Model, weights and pages, smoothed and in float32 until the stack is closed."""
    document, rounding = load_model(settings.model), Rounding.load(settings.run)
    records = [r for r in PageSet.load(settings.run).pages if r.split == "calibration"]
    pages = choose_pages([from_record(r, str(settings.source)) for r in records], settings.pages)
    weights = stack.enter_context(rounding.open_weights(settings.run))
    stack.enter_context(apply_plan(document.model, {}, smoothing=rounded_smoothing(weights)))
    stack.enter_context(in_float32(document.model))
    formats = sorted({group.precision for group in rounding.groups})
    groups = group_records(document.map, search_space(document.map, formats))
    return _Case(
        document,
        RoundedCandidates(rounding, weights, document),
        groups,
        candidates_of(document.map, groups),
        plan_batches(document, pages, settings.batch_size),
    )


def _ours(case: _Case, way: Literal["kl", "screened"]) -> Sensitivity:
    with case.scorer() as scorer:
        scores = ChoiceScores(way, case.document.map, case.groups, case.candidates, scorer, grid_plans)
        rows = [row for row in scores.rows() if row.score == way]
    return Sensitivity(inputs={}, groups=case.groups, rows=rows)


@torch.no_grad()
def _plain(case: _Case) -> Sensitivity:
    """Measured KL of every choice by passes through the whole model."""
    sums: dict[int, list[float]] = {number: [] for number in range(len(case.candidates))}
    num_tokens: list[int] = []
    for batch in case.batches:
        encoded = encode(case.document, batch)
        mask = encoded.answer_mask
        reference = case.document.logits(encoded)[mask]
        num_tokens += mask.sum(1).tolist()
        for number, candidate in enumerate(case.candidates):
            linears = case.rounded.linears({candidate.group: candidate.precision})
            with apply_plan(case.document.model, linears):
                logits = case.document.logits(encoded)[mask]
            by_page = kl_from_logits(reference, logits).double().split(mask.sum(1).tolist())
            sums[number] += [float(values.sum()) for values in by_page]
    rows = [
        _row(case, candidate, sums[number], num_tokens) for number, candidate in enumerate(case.candidates)
    ]
    return Sensitivity(inputs={}, groups=case.groups, rows=rows)


def _row(
    case: _Case, candidate: Candidate, sums: Sequence[float], num_tokens: Sequence[int]
) -> SensitivityRow:
    estimate = ratio_estimate(sums, num_tokens)
    return SensitivityRow(
        group=candidate.group,
        precision=candidate.precision,
        score="kl",
        is_measured=True,
        mean=estimate.mean,
        standard_error=estimate.standard_error,
        num_pages=len(sums),
        num_tokens=sum(num_tokens),
        bits_per_weight=FORMATS[candidate.precision].bits_per_weight,
        weight_bytes=case.document.map.group(candidate.group).weight_bytes(candidate.precision),
    )


def _plans(
    case: _Case, found: Mapping[str, Sensitivity], bits: Sequence[float]
) -> dict[str, dict[str, float]]:
    """Measured KL, nats a token, of the plan that follows from each way's scores, by budget."""
    plans: dict[tuple[str, float], dict[str, Precision]] = {
        (name, budget): solve(build_problem(scores), "bits_per_weight", budget).precisions
        for name, scores in found.items()
        for budget in bits
    }
    with case.scorer() as scorer:
        sums = scorer.measure({f"{name}, {b:g} bits": Change(plan) for (name, b), plan in plans.items()})
        count = sum(scorer.num_tokens())
    return {
        f"{budget:g} bits": {name: sum(sums[f"{name}, {budget:g} bits"]) / count for name in found}
        for budget in bits
    }
