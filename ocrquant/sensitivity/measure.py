"""The stage `sensitivity`: every group in every open format, scored on the calibration pages.

What is quantized are the rounded weights that a checkpoint would hold, under the smoothing that they contain;
the reference is the same smoothed model in bf16, computed in float32 as the candidates are, so that a score
is the price of a group's format alone.
Batches depend on the pages alone and every figure is written down as it is found, so a run that was killed
and repeated ends with the same bytes, and so does one of several processes. Knows the order of work and the
artefact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from ocrquant.adapters import search_space
from ocrquant.adapters.model import DocumentModel
from ocrquant.artifacts import (
    GrowthStep,
    KvCacheScore,
    Rounding,
    RunFolder,
    Sensitivity,
)
from ocrquant.distributed import ranks
from ocrquant.pages import Page
from ocrquant.recipe.sections import SearchSection, SensitivitySection
from ocrquant.sensitivity.batches import choose_pages, plan_batches
from ocrquant.sensitivity.candidates import Change, RoundedCandidates, candidates_of, group_records
from ocrquant.sensitivity.choices import ChoiceScores
from ocrquant.sensitivity.estimates import ratio_estimate
from ocrquant.sensitivity.growth import MAX_CHANGE, largest_change, page_counts
from ocrquant.sensitivity.precision import in_float32
from ocrquant.sensitivity.scorer import Scorer
from ocrquant.sensitivity.screening import Plans, PlansOf
from ocrquant.sensitivity.setup import RESIDENT_BYTES, environment, open_partial
from ocrquant.simulate import apply_plan, rounded_smoothing

__all__ = ["measure_sensitivity"]

KV_CACHE = "kv_cache:fp8"

Stopped = Literal["stable", "limit", "fixed"]


def measure_sensitivity(
    run: RunFolder,
    document: DocumentModel,
    pages: Sequence[Page],
    rounding: Rounding,
    section: SensitivitySection,
    search: SearchSection,
    inputs: Mapping[str, str],
    plans_of: PlansOf,
    *,
    resident_bytes: int = RESIDENT_BYTES,
) -> Sensitivity:
    """Scores all groups and writes ``sensitivity.json``; goes on where a killed process stopped.

    Before it, ``page_scores.json`` with the same scores by page.

    Args:
        run: The run folder, which holds the rounded weights.
        document: The model, loaded and not quantized.
        pages: Calibration pages, each with a text.
        rounding: The rounded weights.
        section: `sensitivity` of the recipe.
        search: `search` of the recipe.
        inputs: SHA-256 of everything that the stage is made from, by name.
        plans_of: Plans that follow from scores, for budgets that are always the same.
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
    chosen = choose_pages(pages, section.num_pages)
    here = ranks()
    partial = open_partial(run, Sensitivity.STAGE, {**inputs, "environment": environment(document)}, here)
    with (
        rounding.open_weights(run.path) as weights,
        apply_plan(document.model, {}, smoothing=rounded_smoothing(weights)),
        in_float32(document.model),
    ):
        rounded = RoundedCandidates(rounding, weights, document)
        scorer = Scorer(document, rounded, candidates, partial, resident_bytes)
        scores = ChoiceScores(section.score, document.map, groups, candidates, scorer, plans_of)
        growth, stopped = _grow(scores, document, chosen, section)
        rows = scores.rows()
        kv_cache = _kv_cache(scorer, document) if rounding.kv else []
    sensitivity = Sensitivity(
        inputs=dict(inputs), groups=groups, rows=rows, kv_cache=kv_cache, growth=growth, stopped=stopped
    )
    here.wait()
    if here.is_first:
        run.save(scorer.by_page(inputs))
        run.save(sensitivity)
        partial.discard()
    here.wait()
    return sensitivity


def _grow(
    scores: ChoiceScores,
    document: DocumentModel,
    pages: Sequence[Page],
    section: SensitivitySection,
) -> tuple[list[GrowthStep], Stopped]:
    """Scores more and more pages, until the plans that follow no longer change."""
    scorer = scores.scorer
    if not section.grow_pages:
        scorer.add(plan_batches(document, pages, section.batch_size))
        return [GrowthStep(num_pages=len(pages))], "fixed"
    steps: list[GrowthStep] = []
    before: Plans = {}
    for count in page_counts(len(pages)):
        scorer.add(plan_batches(document, pages[scorer.num_pages : count], section.batch_size))
        found = Sensitivity(inputs={}, groups=scores.groups, rows=scores.first_rows())
        plans = scores.plans_of(found)
        if not steps:
            steps.append(GrowthStep(num_pages=count))
        else:
            budget, change = largest_change(found, before, plans)
            steps.append(GrowthStep(num_pages=count, regret=change, budget=budget))
            if change <= MAX_CHANGE:
                return steps, "stable"
        before = plans
    return steps, "limit"


def _kv_cache(scorer: Scorer, document: DocumentModel) -> list[KvCacheScore]:
    """What FP8 caches of all full-attention layers cost."""
    sums = scorer.measure({KV_CACHE: Change({}, kv_cache=True)})[KV_CACHE]
    num_tokens = scorer.num_tokens()
    estimate = ratio_estimate(sums, num_tokens)
    config = document.model.config.get_text_config()
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return [
        KvCacheScore(
            precision="fp8",
            mean=estimate.mean,
            standard_error=estimate.standard_error,
            num_pages=len(sums),
            num_tokens=sum(num_tokens),
            elements_per_token=2 * config.num_key_value_heads * head_dim * len(document.map.kv_attention),
        )
    ]
