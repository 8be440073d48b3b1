"""The stage `sensitivity`: every group in every open format, scored on the calibration pages.

What is quantized are the rounded weights that a checkpoint would hold, under the smoothing that they contain;
the reference is the same smoothed model in bf16, computed in float32 as the candidates are, so that a score
is the price of a group's format alone.
Batches depend on the pages alone and every figure is written down as it is found, so a run that was killed
and repeated ends with the same bytes. Knows the order of work and the artefact.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import get_args

import torch
import transformers

from ocrquant.adapters import Group, search_space
from ocrquant.adapters.model import DocumentModel
from ocrquant.artifacts import (
    Journal,
    Rounding,
    RunFolder,
    Sensitivity,
    SensitivityRow,
    sha256_data,
)
from ocrquant.artifacts.sensitivity import ScoreKind
from ocrquant.errors import ModelError
from ocrquant.formats import FORMATS, Precision
from ocrquant.pages import Page
from ocrquant.progress import progress_bar
from ocrquant.recipe.sections import SearchSection, SensitivitySection
from ocrquant.sensitivity.batches import choose_pages, encode, plan_batches
from ocrquant.sensitivity.candidates import Candidate, RoundedCandidates, candidates_of, group_records
from ocrquant.sensitivity.divergence import divergence
from ocrquant.sensitivity.estimates import ratio_estimate
from ocrquant.sensitivity.gradient import gradient_sums
from ocrquant.sensitivity.precision import in_float32
from ocrquant.sensitivity.replay import HiddenStates, Trace, trace_batch
from ocrquant.simulate import apply_plan, rounded_smoothing

__all__ = ["measure_sensitivity"]

RESIDENT_BYTES = 1 << 30
"""Hidden states of a batch beyond this go to disk."""

_Key = tuple[ScoreKind, str, Precision]


def measure_sensitivity(
    run: RunFolder,
    document: DocumentModel,
    pages: Sequence[Page],
    rounding: Rounding,
    section: SensitivitySection,
    search: SearchSection,
    inputs: Mapping[str, str],
    *,
    resident_bytes: int = RESIDENT_BYTES,
) -> Sensitivity:
    """Scores all groups and writes ``sensitivity.json``; goes on where a killed process stopped.

    Args:
        run: The run folder, which holds the rounded weights.
        document: The model, loaded and not quantized.
        pages: Calibration pages, each with a text.
        rounding: The rounded weights.
        section: `sensitivity` of the recipe.
        search: `search` of the recipe.
        inputs: SHA-256 of everything that the stage is made from, by name.
        resident_bytes: Hidden states of a batch to keep on the device; no figure depends on it.

    Raises:
        PatternError: A pattern of the recipe matches nothing or contradicts another one.
        ShapeError: No format fits a group, or a forced one does not.
        PagesError: There are fewer than two pages, or one has no text.
        ModelError: A score is not finite.
        ArtifactError: A group was not rounded, or the rounded weights are not those of the artefact.
        ImageError: An image cannot be read.
        PageSizeError: A page exceeds the context of the model.
        OutputError: The folder is not writable or the disk is full.
    """
    space = search_space(document.map, section.candidates, search.keep_bf16, search.force)
    groups = group_records(document.map, space)
    candidates = candidates_of(document.map, groups)
    batches = plan_batches(document, choose_pages(pages, section.num_pages), section.batch_size)
    partial = run.partial(Sensitivity.STAGE, {**inputs, "environment": _environment(document)})
    kinds: list[ScoreKind] = [kind for kind in get_args(ScoreKind) if section.score in (kind, "both")]
    found = _Found(partial.journal("scores"))
    total = len(kinds) * len(candidates) * sum(map(len, batches))
    with (
        rounding.open_weights(run.path) as weights,
        apply_plan(document.model, {}, smoothing=rounded_smoothing(weights)),
        in_float32(document.model),
        progress_bar("sensitivity", total, "scores", done=found.num_scores) as advance,
    ):
        rounded = RoundedCandidates(rounding, weights, document.device)
        for number, batch in enumerate(batches):
            todo = {kind: [c for c in candidates if not found.has(number, kind, c)] for kind in kinds}
            if not any(todo.values()):
                continue
            hidden = HiddenStates(partial, resident_bytes)
            trace = trace_batch(document, encode(document, batch), hidden)
            found.add_tokens(number, trace.num_tokens)
            for kind, candidate, sums in _scores(trace, todo, rounded, [page.id for page in batch]):
                found.add(number, kind, candidate, sums)
                advance(len(batch))
    sizes = {group.name: group for group in document.map.groups}
    sensitivity = Sensitivity(
        inputs=dict(inputs),
        groups=groups,
        rows=[
            _row(sizes[candidate.group], candidate, kind, found, len(batches))
            for candidate in candidates
            for kind in kinds
        ],
    )
    run.save(sensitivity)
    partial.discard()
    return sensitivity


def _scores(
    trace: Trace,
    todo: Mapping[ScoreKind, Sequence[Candidate]],
    rounded: RoundedCandidates,
    page_ids: Sequence[str],
) -> Iterator[tuple[ScoreKind, Candidate, list[float]]]:
    """Sums by page of every score that a batch still lacks."""
    if gradient := todo.get("gradient"):
        by_candidate = gradient_sums(trace, gradient, rounded, page_ids)
        for candidate in gradient:
            yield "gradient", candidate, by_candidate[candidate.group, candidate.precision]
    for candidate in todo.get("kl", ()):
        yield "kl", candidate, divergence(trace, candidate, rounded)


class _Found:
    """What was measured so far, by batch, in memory and in a journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._tokens: dict[int, list[int]] = {}
        self._sums: dict[tuple[int, _Key], list[float]] = {}
        for record in journal.read():
            if "tokens" in record:
                self._tokens[record["batch"]] = record["tokens"]
            else:
                key = (record["score"], record["group"], Precision(record["precision"]))
                self._sums[record["batch"], key] = record["sums"]

    @property
    def num_scores(self) -> int:
        """Pages times candidates times kinds of score."""
        return sum(map(len, self._sums.values()))

    def has(self, batch: int, kind: ScoreKind, candidate: Candidate) -> bool:
        return (batch, (kind, candidate.group, candidate.precision)) in self._sums

    def add_tokens(self, batch: int, num_tokens: list[int]) -> None:
        if batch not in self._tokens:
            self._journal.append({"batch": batch, "tokens": num_tokens})
            self._tokens[batch] = num_tokens

    def add(self, batch: int, kind: ScoreKind, candidate: Candidate, sums: list[float]) -> None:
        if not all(map(math.isfinite, sums)):
            raise ModelError(
                f"{kind} score of group {candidate.group} in {candidate.precision}",
                expected="finite logits and gradients",
                given="NaN or Inf",
                fix="keep the group in bf16 by search.keep_bf16, and report the model",
            )
        name, precision = candidate.group, candidate.precision
        record = {"batch": batch, "score": kind, "group": name, "precision": str(precision), "sums": sums}
        self._journal.append(record)
        self._sums[batch, (kind, name, precision)] = sums

    def pages(self, num_batches: int, key: _Key) -> tuple[list[float], list[int]]:
        """Sum of a score and number of tokens of every page."""
        sums = [s for batch in range(num_batches) for s in self._sums[batch, key]]
        return sums, [n for batch in range(num_batches) for n in self._tokens[batch]]


def _row(
    group: Group, candidate: Candidate, kind: ScoreKind, found: _Found, num_batches: int
) -> SensitivityRow:
    sums, num_tokens = found.pages(num_batches, (kind, candidate.group, candidate.precision))
    estimate = ratio_estimate(sums, num_tokens)
    return SensitivityRow(
        group=candidate.group,
        precision=candidate.precision,
        score=kind,
        mean=estimate.mean,
        standard_error=estimate.standard_error,
        num_pages=len(sums),
        num_tokens=sum(num_tokens),
        bits_per_weight=FORMATS[candidate.precision].bits_per_weight,
        weight_bytes=group.weight_bytes(candidate.precision),
    )


def _environment(document: DocumentModel) -> str:
    """What the figures depend on beside the inputs: half a stage from another device is not continued."""
    device = document.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return sha256_data([name, str(document.dtype), torch.__version__, transformers.__version__])
