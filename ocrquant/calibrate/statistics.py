"""The stage `statistics`: what flows through each searched linear on the calibration pages.

Each decoder block is gone through once, over all batches. Sums run in float64 over batches whose composition
and order depend on the pages alone, so a run that was killed and repeated, or that several processes shared,
ends with the same bytes. Knows no format and no weight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from ocrquant.adapters.model import DocumentModel
from ocrquant.artifacts import (
    LinearStatistics,
    PartialStage,
    RunFolder,
    Statistics,
    tensor_name,
)
from ocrquant.calibrate.batching import plan_batches
from ocrquant.calibrate.environment import environment_digest
from ocrquant.calibrate.passes import DecoderPasses
from ocrquant.calibrate.sites import (
    Site,
    experts_of,
    positions_of,
    sites_of,
    watch_caches,
    watch_experts,
    watch_inputs,
)
from ocrquant.calibrate.totals import Totals
from ocrquant.calibrate.values import require_finite_parameters
from ocrquant.distributed import Ranks, ranks
from ocrquant.errors import PagesError
from ocrquant.pages import Page
from ocrquant.progress import Advance, progress_bar
from ocrquant.recipe.sections import StatisticsSection

__all__ = ["collect_statistics"]


def collect_statistics(
    run: RunFolder,
    document: DocumentModel,
    pages: Sequence[Page],
    section: StatisticsSection,
    inputs: Mapping[str, str],
) -> Statistics:
    """Runs the pages through the model and writes ``statistics.json`` and ``.safetensors``.

    Positions of prompt and answer count as text, those that hold image features as image, padding never.
    Where the logits are made, only positions whose next token is judged count, as text: a server computes no
    others. Goes on where a killed process stopped, with the block that it was in. Several processes share the
    batches.

    Args:
        run: The run folder.
        document: The model, loaded and not quantized.
        pages: Calibration pages, each with a text.
        section: `statistics` of the recipe.
        inputs: SHA-256 of everything that the stage is made from, by name.

    Raises:
        WeightValueError: A parameter holds NaN or Inf.
        ModelError: Activations are not finite, or the model does something between two blocks.
        PagesError: There is no page, or one has no text.
        ImageError: An image cannot be read.
        PageSizeError: A page exceeds the context of the model.
        OutputError: The folder is not writable or the disk is full.
    """
    if not pages:
        raise PagesError("calibration pages", expected="at least one", given="none", fix="add pages")
    require_finite_parameters(document)
    here, sites = ranks(), sites_of(document.map)
    with here.first_goes_ahead():
        partial = run.partial(Statistics.STAGE, {**inputs, "environment": environment_digest(document)})
    batches = plan_batches(pages, section.batch_size)
    work = _Work(document, partial, batches, sites)
    done = work.num_done()
    here.wait()  # nobody writes before all have looked
    mine = here.share_by_cost([sum(page.width * page.height for page in batch) for batch in batches])
    with progress_bar(
        "statistics", len(pages) * work.num_steps, "pages x blocks", done=done * len(pages)
    ) as advance:
        if done == 0:
            for number in mine:
                work.passes.embed(number)
        for step in range(done, work.num_steps):
            _go_through(work, step, mine, here, advance)
    if here.is_first:
        _write(run, document, sites, work.totals(), len(pages), inputs)
        partial.discard()
    here.wait()
    return run.load(Statistics)


class _Work:
    """The steps of the stage: one for each block, and one for the head where its input is searched."""

    def __init__(
        self,
        document: DocumentModel,
        partial: PartialStage,
        batches: Sequence[Sequence[Page]],
        sites: Sequence[Site],
    ) -> None:
        self.document, self.partial, self.batches = document, partial, batches
        self.passes = DecoderPasses(document, batches, partial)
        count = document.map.num_blocks
        places = [count if site.block is None else site.block for site in sites]
        self.num_steps = max(count, max(places) + 1)
        self._sites = [
            [s for s, place in zip(sites, places, strict=True) if place == step]
            for step in range(self.num_steps)
        ]
        prefixes = [f"{document.map.block_prefix}.{step}." for step in range(self.num_steps)]
        self._caches = [
            [name for name in document.map.kv_attention if name.startswith(prefix)] for prefix in prefixes
        ]
        experts = experts_of(document.map)
        self._experts = [
            {name: number for name, number in experts.items() if name.startswith(prefix)}
            for prefix in prefixes
        ]

    def new_totals(self, step: int, device: torch.device) -> Totals:
        """Zeros for the sites, caches and experts of a step."""
        return Totals(self._sites[step], self._caches[step], device, self._experts[step])

    def num_done(self) -> int:
        """Steps that earlier processes finished."""
        steps = range(self.num_steps)
        return next((step for step in steps if not self.partial.has(_totals(step))), self.num_steps)

    def totals(self) -> dict[str, Tensor]:
        """The figures of all steps."""
        found: dict[str, Tensor] = {}
        for step in range(self.num_steps):
            found |= self.partial.read(_totals(step)) or {}
        return found

    def observe(self, step: int, number: int) -> dict[str, Tensor]:
        """What one batch shows in one step, on the CPU."""
        encoded, totals = self.passes.batch(number), self.new_totals(step, self.document.device)
        positions = {is_head: positions_of(encoded, is_head=is_head) for is_head in (False, True)}
        valid = encoded.valid.flatten().nonzero().squeeze(1)

        def observe_input(site: Site, flat: Tensor, tokens: Tensor | None) -> None:
            found = positions[site.is_head].rows_of(tokens)
            totals.add_input(site, "text", flat.index_select(0, found.text))
            totals.add_input(site, "image", flat.index_select(0, found.image))

        def observe_cache(name: str, keys: Tensor, values: Tensor) -> None:
            totals.add_cache(name, keys, values, valid)

        def observe_experts(name: str, chosen: Tensor) -> None:
            totals.add_routing(name, chosen.index_select(0, valid))

        with (
            watch_inputs(self.document, self._sites[step], observe_input),
            watch_caches(self.document, self._caches[step], observe_cache),
            watch_experts(self.document, self._experts[step], observe_experts),
        ):
            self.passes.run(step, encoded, number, keep=step + 1 < self.num_steps)
        totals.require_finite(self.batches[number])
        return {name: tensor.cpu() for name, tensor in totals.tensors.items()}


def _totals(step: int) -> str:
    return f"totals-{step}"


def _go_through(work: _Work, step: int, mine: Sequence[int], here: Ranks, advance: Advance) -> None:
    """Runs all batches through one step, adds up what they show in their order, and stores it."""
    is_block = step < work.document.map.num_blocks
    found: dict[int, dict[str, Tensor]] = {}
    with work.document.resident_block(step) if is_block else nullcontext():
        for number in mine:
            found[number] = work.observe(step, number)
            advance(len(work.batches[number]))
    shown: dict[int, dict[str, Tensor]] = {}
    for part in here.gather(found):
        shown |= part
    totals = work.new_totals(step, torch.device("cpu"))
    for number in range(len(work.batches)):
        totals.add(shown[number])
    if here.is_first:
        work.partial.write(_totals(step), totals.tensors)
    here.wait()
    for number in mine:
        work.passes.drop(step, number)


def _write(
    run: RunFolder,
    document: DocumentModel,
    sites: Sequence[Site],
    found: Mapping[str, Tensor],
    num_pages: int,
    inputs: Mapping[str, str],
) -> None:
    totals = Totals([], [], torch.device("cpu"))
    totals.tensors |= found
    tensors, linears = {}, []
    for site in sites:
        text, image = totals.of_positions(site, "text"), totals.of_positions(site, "image")
        channels = totals.of_channels(site)
        for linear in (linear for group in site.groups for linear in group.linears):
            linears.append(
                LinearStatistics(name=linear.name, in_features=linear.in_features, text=text, image=image)
            )
            for (kind, quantity), tensor in channels.items():
                tensors[tensor_name(linear.name, kind, quantity)] = tensor.clone()  # type: ignore[arg-type]
    statistics = Statistics(
        inputs=dict(inputs),
        num_pages=num_pages,
        tensors=run.save_tensors(Statistics.TENSORS_NAME, tensors),
        linears=linears,
        kv=totals.of_caches(document.map.kv_attention),
        experts=totals.of_experts(),
    )
    run.save(statistics)
