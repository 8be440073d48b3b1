"""The judge of a whole plan: its measured KL on the pages that were scored.

Scores are of single groups; what several of them cost together is only known when they are quantized
together. Every judgement is written down, so that the same plan is never measured twice for the same inputs.
Knows plans and pages. Does not know who asks or why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Literal, Self

from ocrquant.adapters.model import DocumentModel
from ocrquant.artifacts import Rounding, RunFolder, sha256_data
from ocrquant.distributed import ranks
from ocrquant.formats import Precision
from ocrquant.pages import Page
from ocrquant.recipe.sections import SensitivitySection
from ocrquant.sensitivity.batches import choose_pages, encode, num_positions, plan_batches
from ocrquant.sensitivity.candidates import Change, RoundedCandidates
from ocrquant.sensitivity.divergence import divergences
from ocrquant.sensitivity.precision import in_float32
from ocrquant.sensitivity.records import Records, deal
from ocrquant.sensitivity.replay import KEPT_LOGITS_BYTES, HiddenStates, Trace, trace_batch
from ocrquant.sensitivity.setup import RESIDENT_BYTES, environment, open_partial
from ocrquant.simulate import apply_plan, rounded_smoothing

__all__ = ["PlanJudge"]

STAGE = "judge"


class PlanJudge:
    """Measures plans; use as a context manager. The model is quantized inside of a call only.

    Args:
        run: The run folder, which holds the rounded weights.
        document: The model, loaded and not quantized.
        pages: Calibration pages, each with a text.
        rounding: The rounded weights.
        section: `sensitivity` of the recipe, which says how many of the pages are judged on.
        inputs: SHA-256 of everything that scores are made from, by name: those of ``sensitivity.json``.
        resident_bytes: Hidden states to keep on the device; no figure depends on it.

    Raises:
        PagesError: There are fewer than two pages, or one has no text.
        PageSizeError: A page exceeds the context of the model.
        OutputError: The folder is not writable.
    """

    def __init__(
        self,
        run: RunFolder,
        document: DocumentModel,
        pages: Sequence[Page],
        rounding: Rounding,
        section: SensitivitySection,
        inputs: Mapping[str, str],
        *,
        resident_bytes: int = RESIDENT_BYTES,
    ) -> None:
        self._run, self._document, self._rounding = run, document, rounding
        self._here = ranks()
        self._batches = plan_batches(document, choose_pages(pages, section.num_pages), section.batch_size)
        self._partial = open_partial(run, STAGE, {**inputs, "environment": environment(document)}, self._here)
        self._records = Records(self._partial, "plans", self._here)
        self._costs = [float(num_positions(document, batch)) for batch in self._batches]
        self._room = resident_bytes // (len(self._batches) + 1)
        self._traces: dict[int, Trace] = {}
        self._open = ExitStack()
        self._rounded: RoundedCandidates | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._traces.clear()
        self._rounded = None
        self._open.close()

    @property
    def num_pages(self) -> int:
        """Pages that a plan is judged on."""
        return sum(map(len, self._batches))

    def __call__(
        self, groups: Mapping[str, Precision], kv_cache: Literal["bf16", "fp8"] = "bf16"
    ) -> list[tuple[float, int]]:
        """KL(bf16 || plan) in nats, summed over the answer tokens of a page, and their number, page by page.

        The same plan gives the same numbers, whatever was asked before, by any number of processes; all of
        them have to ask the same.

        Args:
            groups: Format by group; groups that are left out stay in bf16.
            kv_cache: Format of the caches of full-attention layers.

        Raises:
            ArtifactError: A group was not rounded to its format.
            ImageError: An image cannot be read.
            OutputError: The folder is not writable or the disk is full.
        """
        change = Change({name: p for name, p in groups.items() if p is not Precision.BF16}, kv_cache == "fp8")
        plan = sha256_data([sorted((name, str(p)) for name, p in change.groups.items()), kv_cache])
        keys = [f"{number}:{plan}" for number in range(len(self._batches))]
        # Dealt out among all batches, not those to do: a batch stays with the process that holds its trace.
        for number in deal(self._costs, self._here):
            if keys[number] not in self._records:
                self._measure(number, keys[number], change)
        self._records.exchange()
        found: list[tuple[float, int]] = []
        for key in keys:
            values = self._records[key]
            half = len(values) // 2
            found += [(kl, int(count)) for kl, count in zip(values[:half], values[half:], strict=True)]
        return found

    def _measure(self, number: int, key: str, change: Change) -> None:
        """The divergence of one batch, written down with the number of tokens of each page."""
        if self._rounded is None:
            self._rounded = self._enter_model()
        trace = self._trace(number)
        carried = HiddenStates(self._partial, self._room, f"carried-{self._here.index}")
        (sums,) = divergences(trace, [change], self._rounded, carried)
        self._records.add({key: [*sums, *map(float, trace.num_tokens)]})

    def _enter_model(self) -> RoundedCandidates:
        """Smoothing and float32, until the judge is left."""
        weights = self._open.enter_context(self._rounding.open_weights(self._run.path))
        smoothing = rounded_smoothing(weights)
        self._open.enter_context(apply_plan(self._document.model, {}, smoothing=smoothing))
        self._open.enter_context(in_float32(self._document.model))
        return RoundedCandidates(self._rounding, weights, self._document)

    def _trace(self, number: int) -> Trace:
        """A batch as the unquantized model sees it: input and output of the decoder, kept for all plans."""
        if number not in self._traces:
            hidden = HiddenStates(self._partial, self._room, f"batch-{number}")
            self._traces[number] = trace_batch(
                self._document,
                encode(self._document, self._batches[number]),
                hidden,
                inputs=(0,),
                kept_bytes=KEPT_LOGITS_BYTES // len(self._batches),
            )
        return self._traces[number]
