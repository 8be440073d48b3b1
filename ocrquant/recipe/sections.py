"""What a recipe may say: one model per section, unknown keys refused, every field read by a stage.

Knows keys, units and ranges, and rules that hold between keys. Does not know whether a model, a page or a
layer exists: `ocrquant check` looks.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from ocrquant.formats import Precision
from ocrquant.recipe.assign_section import (
    AssignSection,
    Budget,
    CountedCacheSection,
    RepairSection,
    TargetSection,
)
from ocrquant.recipe.base import Pattern, Section, check_distinct, rule_broken

__all__ = [
    "MAX_SHARD_BYTES",
    "AssignSection",
    "Budget",
    "CountedCacheSection",
    "EquivalenceSection",
    "EvaluateSection",
    "ExportSection",
    "GateSection",
    "ModelSection",
    "PagesSection",
    "RepairSection",
    "SearchSection",
    "Section",
    "SensitivitySection",
    "StatisticsSection",
    "TargetSection",
    "WeightsSection",
    "rule_broken",
]

PageKind = Literal["line", "block", "page"]
Arm = Literal["bf16", "fp8", "nvfp4", "plan"]

MAX_SHARD_BYTES = 4_000_000_000
"""Largest safetensors file unless something else is asked for."""


class ModelSection(Section):
    """The model to quantize.

    Attributes:
        path: Hugging Face folder, relative to the working directory; ``pico`` is the model shipped with the
            package.
        allow_remote_code: Run Python files of that folder. Off: such a model is refused.
        allow_generic: Guess the structure of an architecture that is not known; ``check`` lists the guesses.
            Off: such a model is refused.
        prompts: Prompt for a kind of page, in place of the architecture's own.
        residency: ``whole`` loads all weights; ``block`` reads those of one decoder block at a time from the
            disk, for models larger than memory; ``auto`` takes ``whole`` where it fits. No figure depends on
            it.
    """

    path: str = Field(min_length=1)
    allow_remote_code: bool = False
    allow_generic: bool = False
    residency: Literal["auto", "whole", "block"] = "auto"
    prompts: dict[PageKind, str] = Field(default_factory=dict)


class PagesSection(Section):
    """The pages to measure on.

    Attributes:
        source: Folder or file of pages, relative to the working directory.
        num_calibration_pages: Pages for statistics, scores and weights; fewer where the source has fewer.
        num_heldout_pages: Pages for the evaluation, of other documents.
        heldout_fraction: Part of the documents put aside for the evaluation where the source names no split.
        kinds: Kinds of page to take.
        default_kind: Kind of pages whose source states none.
        dpi: Resolution at which the pages of PDFs are rendered.
        max_pixels: Largest page accepted.
        seed: Seed of the choice of pages and of the bootstrap.
    """

    source: str = Field(min_length=1)
    num_calibration_pages: int = Field(ge=2)
    num_heldout_pages: int = Field(ge=1)
    heldout_fraction: float = Field(default=0.25, gt=0, lt=1)
    kinds: Annotated[list[PageKind], AfterValidator(check_distinct)] = Field(
        default=["line", "block", "page"], min_length=1
    )
    default_kind: PageKind = "page"
    dpi: int = Field(default=150, ge=1, le=2400)
    max_pixels: int = Field(default=50_000_000, ge=1)
    seed: int = Field(default=0, ge=0)


class StatisticsSection(Section):
    """How activations are observed. Attribute `batch_size`: pages at once."""

    batch_size: int = Field(default=8, ge=1)


class SensitivitySection(Section):
    """How much each group suffers.

    Attributes:
        score: ``gradient`` (one backward pass a page), ``kl`` (one forward pass a page, group and format,
            from the changed layer on), ``both``, with which the plan follows the measured KL, or
            ``screened``: the KL is measured where the gradient score is large, or where what it leaves open
            decides a plan; the other gradient scores are corrected by what was measured.
        candidates: Formats that compete with bf16.
        num_pages: Most calibration pages to score on, at least two, whose scatter is the noise of a score;
            all of them by default.
        grow_pages: Begin with few pages and take twice as many until the plans that follow from the scores
            no longer change; else `num_pages` at once.
        batch_size: Pages at once.
    """

    score: Literal["gradient", "kl", "both", "screened"] = "screened"
    candidates: Annotated[list[Precision], AfterValidator(check_distinct)] = Field(min_length=1)
    num_pages: int | None = Field(default=None, ge=2)
    grow_pages: bool = True
    batch_size: int = Field(default=8, ge=1)

    @model_validator(mode="after")
    def _bf16_is_always_open(self) -> Self:
        if Precision.BF16 in self.candidates:
            raise rule_broken(
                "formats that compete with bf16", "bf16 among them", "remove bf16 from candidates"
            )
        return self


class SearchSection(Section):
    """What is settled before the search. A pattern is a glob, or a regular expression after ``re:``.

    Attributes:
        keep_bf16: Linears that stay in bf16; they count at 16 bits in the budget.
        force: Linears that get one format, whatever their score.
    """

    keep_bf16: list[Pattern] = Field(default_factory=list)
    force: dict[Precision, list[Pattern]] = Field(default_factory=dict)


class WeightsSection(Section):
    """How weights meet their grid; each step is kept for a layer only where it lowers its output error.

    Attributes:
        engine: Who rounds: our own steps below, or another toolkit by its method, whose weights are kept as
            they are: llm-compressor's GPTQ, or ModelOpt's calibration by maxima.
        smoothing: Move scale between channels of activations and weights, folded into the norm before them.
        scale_search: Search block and tensor scales for the least squared error.
        gptq: Compensate rounding errors column by column.
        num_held_back_pages: Calibration pages that decide whether a step is kept; no step is fitted on them.
    """

    engine: Literal["ocrquant", "llm-compressor-gptq", "modelopt"] = "ocrquant"
    smoothing: bool = True
    scale_search: bool = True
    gptq: bool = True
    num_held_back_pages: int = Field(default=8, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _steps_are_ours(cls, data: Any) -> Any:
        if not isinstance(data, dict) or data.get("engine", "ocrquant") == "ocrquant":
            return data
        # Pages are held back for our steps alone, and a resolved recipe states the number.
        asked = [step for step in ("smoothing", "scale_search", "gptq") if data.get(step)]
        if asked:
            given = f"{asked[0]} with engine {data['engine']}"
            raise rule_broken("steps of engine ocrquant alone", given, f"remove {asked[0]}, or the engine")
        return data | dict.fromkeys(("smoothing", "scale_search", "gptq"), False)

    @property
    def is_nearest(self) -> bool:
        """Whether weights are only rounded to nearest, or by another toolkit: no page is held back."""
        return not (self.smoothing or self.scale_search or self.gptq)


class ExportSection(Section):
    """What is written.

    Attributes:
        format: On-disk format; that of the target where left out, and compressed-tensors without a target.
        target: Server that is to read it, perhaps with its version: ``vllm``, ``vllm==0.30.0``, ``sglang``,
            ``tensorrt-llm``. What it cannot read is refused before any work.
        kv_cache: ``fp8`` writes calibrated scales for the caches of full-attention layers; ``auto`` lets the
            budget decide, where it counts keys and values, by the measured loss of an FP8 cache.
        max_shard_bytes: Largest safetensors file.
    """

    format: Literal["compressed-tensors", "modelopt"] | None = None
    target: str | None = Field(default=None, pattern=r"^(vllm|sglang|tensorrt-llm)(==\d+(\.\d+)*)?$")
    kv_cache: Literal["fp8", "bf16", "auto"] = "bf16"
    max_shard_bytes: int = Field(default=MAX_SHARD_BYTES, ge=1)


class EquivalenceSection(Section):
    """How much worse than bf16 the plan may read and still count as equal, on every kind of page.

    Attributes:
        cer_margin: Largest change of the CER that counts as none, as a fraction.
        kl_margin: Largest mean KL divergence from bf16 in nats a token; not tested where left out.
        confidence: One less the level of each one-sided test: 0.95 looks at intervals of 90 %.
    """

    cer_margin: float = Field(gt=0, lt=1)
    kl_margin: float | None = Field(default=None, gt=0)
    confidence: float = Field(default=0.95, gt=0.5, lt=1)


class EvaluateSection(Section):
    """What is measured on the held-out pages.

    Attributes:
        max_new_tokens: Longest answer; also that of the transcriptions that stand in for missing truth.
        batch_size: Pages at once.
        num_bootstrap_samples: Resamples of the pages behind each interval.
        arms: Rows of the comparison: uniform plans and the chosen one.
        equivalence: Margins within which the plan counts as equal to bf16; without, there is no verdict.
        drafter: Drafter whose guesses the plan also reads with: a folder, the name of a shipped one, or
            ``run`` for that of `ocrquant drafter train` with this recipe.
    """

    max_new_tokens: int = Field(default=1024, ge=1)
    batch_size: int = Field(default=8, ge=1)
    num_bootstrap_samples: int = Field(default=2000, ge=100)
    arms: Annotated[list[Arm], AfterValidator(check_distinct)] = Field(
        default=["bf16", "fp8", "nvfp4", "plan"]
    )
    equivalence: EquivalenceSection | None = None
    drafter: str | None = Field(default=None, min_length=1)

    @model_validator(mode="after")
    def _has_both_ends(self) -> Self:
        if missing := [arm for arm in ("bf16", "plan") if arm not in self.arms]:
            raise rule_broken("arms with bf16 and plan", f"none called {missing[0]}", f"add {missing[0]}")
        return self


class GateSection(Section):
    """Thresholds that fail the command, after the report is written.

    The estimate decides; the report prints its interval beside it and says where that reaches across the
    limit. Any gate also fails where the plan's logits are not finite on some page.

    Attributes:
        max_cer_increase: Largest CER of the plan less that of bf16, over all pages, as a fraction.
        max_worst_kind_cer_increase: The same for the kind of page that lost most.
        max_kl: Largest mean KL divergence from bf16 in nats a token.
        require_equivalence: The plan must be shown to read as well as bf16 within the margins of
            `evaluate.equivalence`, on every kind of page; too few pages fail as well.
        min_acceptance_length: Fewest tokens that a verification of `evaluate.drafter` emits, over all pages.
    """

    max_cer_increase: float | None = Field(default=None, ge=0)
    max_worst_kind_cer_increase: float | None = Field(default=None, ge=0)
    max_kl: float | None = Field(default=None, ge=0)
    require_equivalence: bool | None = None
    min_acceptance_length: float | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _has_a_threshold(self) -> Self:
        if all(value is None or value is False for _, value in self):
            expected = "at least one of " + " | ".join(type(self).model_fields)
            raise rule_broken(expected, "none", "state one, or remove the section")
        return self
