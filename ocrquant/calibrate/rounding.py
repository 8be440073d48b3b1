"""The stage `rounding`: every searched group in every candidate format, once and for all later stages.

What is scored, compared and written are these weights. Knows the order of work, how it goes on after a kill,
and the file; how a weight is rounded is the business of `ocrquant.rounding`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from ocrquant.adapters import Group
from ocrquant.adapters.model import DocumentModel
from ocrquant.artifacts import (
    FrozenModel,
    GroupInput,
    GroupRounding,
    KvScales,
    NormSmoothing,
    Rounding,
    RoundingStep,
    RunFolder,
    Statistics,
    norm_tensor_name,
    tensor_name,
    weight_tensor_name,
)
from ocrquant.calibrate.batching import plan_batches, split_held_back
from ocrquant.calibrate.collect import Balance, Collected, PageSplit, collect, waves
from ocrquant.calibrate.environment import environment_digest
from ocrquant.calibrate.passes import DecoderPasses
from ocrquant.calibrate.rounded_file import SiteStore
from ocrquant.calibrate.sites import Site, sites_of
from ocrquant.calibrate.values import require_finite_parameters
from ocrquant.distributed import ranks
from ocrquant.formats import Precision, fp8, nvfp4
from ocrquant.formats.weights import weight_tensors
from ocrquant.pages import Page
from ocrquant.progress import Advance, progress_bar
from ocrquant.recipe.sections import StatisticsSection, WeightsSection
from ocrquant.rounding import LayerInput, Methods, Norm, RoundedLayer, round_layer, round_to_nearest

__all__ = ["round_groups"]


@dataclass(frozen=True, slots=True)
class _Observed:
    """Figures of the statistics, by site.

    Attributes:
        channel_amax: Name of a site -> float32 [in], largest |x| over text and image.
        balances: Name of a site -> weights of its positions.
    """

    channel_amax: Mapping[str, Tensor]
    balances: Mapping[str, Balance]

    @classmethod
    def of(cls, run: RunFolder, statistics: Statistics, sites: Sequence[Site]) -> _Observed:
        tensors = statistics.load_tensors(run.path)
        linears = {linear.name: linear for linear in statistics.linears}
        channel_amax, balances = {}, {}
        for site in sites:
            text = tensors[tensor_name(site.name, "text", "channel_amax")]
            image = tensors[tensor_name(site.name, "image", "channel_amax")]
            channel_amax[site.name] = torch.maximum(text, image)
            seen = linears[site.name]
            balances[site.name] = Balance.of_counts(seen.text.num_tokens, seen.image.num_tokens)
        return cls(channel_amax, balances)


def round_groups(
    run: RunFolder,
    document: DocumentModel,
    pages: Sequence[Page],
    statistics: Statistics,
    section: WeightsSection,
    candidates: Sequence[Precision],
    batching: StatisticsSection,
    inputs: Mapping[str, str],
) -> Rounding:
    """Rounds all searched groups to all candidate formats; writes ``rounding.json`` and ``.safetensors``.

    A format that does not fit the width of a group is left out for this group. Goes on where a killed process
    stopped, one tensor that linears read at a time. Several processes share these tensors; each takes the
    pages through the model by itself.

    Args:
        run: The run folder.
        document: The model, loaded and not quantized.
        pages: Calibration pages, each with a text: those of the statistics.
        statistics: What the statistics stage wrote into the same folder.
        section: `weights` of the recipe.
        candidates: `sensitivity.candidates` of the recipe.
        batching: `statistics` of the recipe.
        inputs: SHA-256 of everything that the stage is made from, by name.

    Raises:
        WeightValueError: A parameter holds NaN or Inf.
        SplitError: No page is left to fit on.
        PagesError: A page has no text.
        ArtifactError: The tensors of the statistics are not those that belong to it.
        ImageError: An image cannot be read.
        PageSizeError: A page exceeds the context of the model.
        OutputError: The folder is not writable or the disk is full.
    """
    require_finite_parameters(document)
    here, sites = ranks(), sites_of(document.map)
    observed = _Observed.of(run, statistics, sites)
    with here.first_goes_ahead():
        partial = run.partial(Rounding.STAGE, {**inputs, "environment": environment_digest(document)})
    store = SiteStore(partial, here.index)
    job = _Job(document, observed, section, tuple(candidates))
    here.wait()  # nobody writes before all have looked
    left = [site for site in sites if site.name not in store.done]
    mine = [left[number] for number in here.share_by_cost([job.cost(site) for site in left])]
    with progress_bar("rounding", len(sites), "inputs", done=len(sites) - len(left)) as advance:
        if section.is_nearest:
            for site in mine:
                store.add(site.name, *job.nearest(site))
                advance(1)
        else:
            fit, held_back = split_held_back(pages, section.num_held_back_pages)
            size = batching.batch_size
            split = PageSplit(plan_batches(fit, size), plan_batches(held_back, size))
            passes = DecoderPasses(document, split.batches, partial, f"{here.index}-")
            _round_block_by_block(job, store, passes, split, mine, advance)
    here.wait()
    if here.is_first:
        store.refresh()
        _write(run, store, statistics, section, sites, inputs)
        partial.discard()
    here.wait()
    return run.load(Rounding)


def _round_block_by_block(
    job: _Job,
    store: SiteStore,
    passes: DecoderPasses,
    split: PageSplit,
    sites: Sequence[Site],
    advance: Advance,
) -> None:
    """Takes the pages from block to block, and rounds the weights of each before the next one."""
    document, num_blocks, numbers = job.document, job.document.map.num_blocks, range(len(split.batches))
    by_step: dict[int, list[Site]] = {}
    for site in sites:
        by_step.setdefault(num_blocks if site.block is None else site.block, []).append(site)
    if not by_step:
        return
    # An earlier process may have come as far as the first block that has something left to do.
    first, last = min(by_step), max(by_step)
    if not passes.has_reached(first):
        first = 0
        for number in numbers:
            passes.embed(number)
    for step in range(first, last + 1):
        with document.resident_block(step) if step < num_blocks else nullcontext():
            for wave in waves(by_step.get(step, []), document.device) or [[]]:
                found = collect(document, passes, step, wave, split, job.observed.balances, keep=step < last)
                for site in wave:
                    store.add(site.name, *job.searched(site, found.pop(site.name)))
                    advance(1)
        for number in numbers:
            passes.drop(step, number)


@dataclass(frozen=True, slots=True)
class _Job:
    """Rounds one site at a time.

    Attributes:
        document: The model.
        observed: Figures of the statistics.
        section: What the recipe asks for.
        candidates: Formats asked for.
    """

    document: DocumentModel
    observed: _Observed
    section: WeightsSection
    candidates: tuple[Precision, ...]

    def cost(self, site: Site) -> float:
        """About how long a site takes: its weights in each format, and the factors of its Hessian.

        Seconds over 1.5e-6, as measured with 870 GFLOP/s of a bf16 product (2026-11-30).
        """
        weights = sum(group.num_weights * len(self._formats(group)) for group in site.groups)
        return weights + (site.in_features**3 / 9000 if self.section.gptq else 0)

    def _formats(self, group: Group) -> list[Precision]:
        return [p for p in self.candidates if p is not Precision.BF16 and group.reason_against(p) is None]

    def _weights(self, names: Sequence[str]) -> list[Tensor]:
        return [self.document.weight(name).float() for name in names]

    def nearest(self, site: Site) -> tuple[dict[str, object], dict[str, Tensor]]:
        """A site without a look at its activations: record and tensors."""
        groups = {}
        for group in site.groups:
            weights = self._weights([linear.name for linear in group.linears])
            for precision in self._formats(group):
                groups[group.name, precision] = round_to_nearest(weights, precision)
        layer = RoundedLayer(groups, None, 0.0, self.observed.channel_amax[site.name])
        return _record(site, layer), _tensors(site, layer)

    def searched(self, site: Site, found: Collected) -> tuple[dict[str, object], dict[str, Tensor]]:
        """A site with all steps that the recipe asks for: record and tensors."""
        section, fold = self.section, site.fold
        channel_amax = self.observed.channel_amax[site.name].to(self.document.device)
        norm, kept = None, []
        if fold is not None:
            norm = Norm(self.document.weight(fold.norm), fold.offset)
            searched = {linear.name for group in site.groups for linear in group.linears}
            kept = self._weights([name for name in fold.linears if name not in searched])
        layer = round_layer(
            {g.name: self._weights([linear.name for linear in g.linears]) for g in site.groups},
            {group.name: self._formats(group) for group in site.groups},
            LayerInput(channel_amax, found.hessian, found.fit, found.held_back),
            # What errors of one expert should make up for depends on its own tokens, which may be few.
            Methods(section.smoothing, section.scale_search, section.gptq and not site.has_experts),
            norm=norm,
            kept=kept,
        )
        return _record(site, layer), _tensors(site, layer)


def _record(site: Site, layer: RoundedLayer) -> dict[str, object]:
    """What the journal says of a site, in the models of the artefact."""
    linears = {group.name: [linear.name for linear in group.linears] for group in site.groups}
    groups = [
        GroupRounding(
            group=name,
            precision=precision,
            linears=linears[name],
            steps=[
                RoundingStep(
                    step=step.name,
                    accepted=step.accepted,
                    error_before=step.error_before,
                    error_after=step.error_after,
                )
                for step in rounded.steps
            ],
            error=rounded.error,
        )
        for (name, precision), rounded in layer.groups.items()
    ]
    amax = layer.channel_amax.amax().float()
    scale = float(nvfp4.exchangeable_scale(nvfp4.global_encode_scale(amax)))
    rounded_groups = dict.fromkeys(name for name, _ in layer.groups)
    inputs = [GroupInput(group=name, amax=float(amax), encode_scale=scale) for name in rounded_groups]
    norms = []
    if site.fold is not None:
        accepted = layer.smoothing is not None
        norms.append(
            NormSmoothing(
                norm=site.fold.norm,
                linears=list(site.fold.linears),
                accepted=accepted,
                exponent=layer.exponent,
            )
        )
    records: dict[str, Sequence[FrozenModel]] = {"groups": groups, "group_inputs": inputs, "norms": norms}
    return {name: [item.model_dump(mode="json") for item in items] for name, items in records.items()}


def _tensors(site: Site, layer: RoundedLayer) -> dict[str, Tensor]:
    linears = {group.name: [linear.name for linear in group.linears] for group in site.groups}
    tensors = {}
    for (name, precision), rounded in layer.groups.items():
        for linear, weight in zip(linears[name], rounded.weights, strict=True):
            for suffix, tensor in weight_tensors(weight).items():
                tensors[weight_tensor_name(linear, precision, suffix)] = tensor
    if layer.smoothing is not None:
        assert site.fold is not None
        tensors[norm_tensor_name(site.fold.norm, "smoothing")] = layer.smoothing.vector
        tensors[norm_tensor_name(site.fold.norm, "weight")] = layer.smoothing.norm_weight
    return tensors


def _kv_scales(statistics: Statistics) -> list[KvScales]:
    found = []
    for layer in statistics.kv:
        k_scale, v_scale = fp8.static_decode_scale(torch.tensor([layer.k_amax, layer.v_amax])).tolist()
        found.append(KvScales(name=layer.name, k_decode_scale=k_scale, v_decode_scale=v_scale))
    return found


def _write(
    run: RunFolder,
    store: SiteStore,
    statistics: Statistics,
    section: WeightsSection,
    sites: Sequence[Site],
    inputs: Mapping[str, str],
) -> None:
    names = [site.name for site in sites]
    rounding = Rounding(
        inputs=dict(inputs),
        num_held_back_pages=0 if section.is_nearest else section.num_held_back_pages,
        tensors=store.write(run.path / Rounding.TENSORS_NAME, names),
        groups=store.items(names, "groups"),
        group_inputs=store.items(names, "group_inputs"),
        norms=store.items(names, "norms"),
        kv=_kv_scales(statistics),
    )
    assert all(math.isfinite(item.encode_scale) for item in rounding.group_inputs)
    run.save(rounding)
