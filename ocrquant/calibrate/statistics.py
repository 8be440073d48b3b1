"""The stage `statistics`: what flows through each searched linear on the calibration pages.

Sums run in float64 over batches whose composition and order depend on the pages alone, so a run that was
killed and repeated ends with the same bytes. Knows no format and no weight.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import get_args

import torch
from torch import Tensor

from ocrquant.adapters.model import DocumentModel, Encoded
from ocrquant.artifacts import (
    KvStatistics,
    LinearStatistics,
    PartialStage,
    PositionStatistics,
    RunFolder,
    Statistics,
    tensor_name,
)
from ocrquant.artifacts.statistics import Positions as PositionKind
from ocrquant.calibrate.batching import encoded_batches, plan_batches
from ocrquant.calibrate.environment import environment_digest
from ocrquant.calibrate.sites import Site, forward, positions_of, sites_of, watch_caches, watch_inputs
from ocrquant.calibrate.values import require_finite_parameters
from ocrquant.errors import ModelError, PagesError
from ocrquant.pages import Page
from ocrquant.progress import progress_bar
from ocrquant.recipe.sections import StatisticsSection

__all__ = ["collect_statistics"]

_KINDS: tuple[PositionKind, ...] = get_args(PositionKind)
_STATE = "totals"


class _Totals:
    """Running totals of all sites and caches, in a form that can be stored."""

    def __init__(self, document: DocumentModel, sites: Sequence[Site]) -> None:
        self.num_batches = 0
        self.tensors: dict[str, Tensor] = {}
        device = document.device
        for site in sites:
            for kind in _KINDS:
                key = f"{site.name}:{kind}"
                self.tensors[f"{key}:amax"] = torch.zeros(site.in_features, device=device)
                self.tensors[f"{key}:squares"] = torch.zeros(
                    site.in_features, dtype=torch.float64, device=device
                )
                self.tensors[f"{key}:count"] = torch.zeros((), dtype=torch.int64)
        for name in document.map.kv_attention:
            self.tensors[f"{name}:kv:amax"] = torch.zeros(2, device=device)
            self.tensors[f"{name}:kv:count"] = torch.zeros((), dtype=torch.int64)

    def add_input(self, site: Site, kind: PositionKind, rows: Tensor) -> None:
        """Counts rows [n, in] of a site."""
        if not len(rows):
            return
        key = f"{site.name}:{kind}"
        amax = self.tensors[f"{key}:amax"]
        torch.maximum(amax, rows.abs().amax(dim=0).float(), out=amax)
        # The square of a bf16 number is exact in float32.
        self.tensors[f"{key}:squares"] += rows.float().square().sum(dim=0, dtype=torch.float64)
        self.tensors[f"{key}:count"] += len(rows)

    def add_cache(self, name: str, keys: Tensor, values: Tensor, positions: Tensor) -> None:
        """Counts keys and values [B, heads, T, head_dim] at flat positions."""
        amax = self.tensors[f"{name}:kv:amax"]
        for i, written in enumerate((keys, values)):
            rows = written.transpose(1, 2).flatten(0, 1).index_select(0, positions)
            amax[i] = torch.maximum(amax[i], rows.abs().amax().float())
        self.tensors[f"{name}:kv:count"] += len(positions)

    def require_finite(self, pages: Sequence[Page]) -> None:
        """Refuses totals that a batch made NaN or infinite, naming the first site and the pages."""
        names = [name for name in self.tensors if name.endswith(":amax")]
        largest = torch.stack([self.tensors[name].amax() for name in names])
        for name, is_finite in zip(names, torch.isfinite(largest).tolist(), strict=True):
            if not is_finite:
                raise ModelError(
                    f"input of {name.split(':')[0]} on pages {', '.join(page.id for page in pages)}",
                    expected="finite activations",
                    given="NaN or Inf",
                    fix="check that the model reads these pages in this precision without quantization",
                )

    def save(self, partial: PartialStage) -> None:
        partial.write(_STATE, self.tensors | {"num_batches": torch.tensor(self.num_batches)})

    def restore(self, partial: PartialStage) -> None:
        stored = partial.read(_STATE)
        if stored is None:
            return
        self.num_batches = int(stored["num_batches"])
        for name, tensor in self.tensors.items():
            tensor.copy_(stored[name])

    def of_positions(self, site: Site, kind: PositionKind) -> PositionStatistics:
        """The figures of one kind of position."""
        key = f"{site.name}:{kind}"
        amax, count = self.tensors[f"{key}:amax"].cpu(), int(self.tensors[f"{key}:count"])
        median = float(amax.median())
        return PositionStatistics(
            num_tokens=count,
            amax=float(amax.amax()),
            outlier_ratio=float(amax.amax()) / median if median > 0 else 0.0,
            dead_channels=(amax == 0).nonzero().squeeze(1).tolist() if count else [],
        )

    def of_channels(self, site: Site) -> dict[tuple[PositionKind, str], Tensor]:
        """Per-channel tensors, float32 [in]."""
        found: dict[tuple[PositionKind, str], Tensor] = {}
        for kind in _KINDS:
            key = f"{site.name}:{kind}"
            count = max(1, int(self.tensors[f"{key}:count"]))
            found[kind, "channel_amax"] = self.tensors[f"{key}:amax"].cpu()
            found[kind, "second_moment"] = (self.tensors[f"{key}:squares"] / count).float().cpu()
        return found

    def of_caches(self, names: Sequence[str]) -> list[KvStatistics]:
        """The figures of the full-attention layers."""
        found = []
        for name in names:
            count = int(self.tensors[f"{name}:kv:count"])
            if count == 0:
                raise ModelError(
                    name,
                    expected="keys and values handed to a cache in each pass",
                    given="none",
                    fix="update transformers, or report the model",
                )
            k_amax, v_amax = self.tensors[f"{name}:kv:amax"].tolist()
            found.append(KvStatistics(name=name, k_amax=k_amax, v_amax=v_amax, num_tokens=count))
        return found


def collect_statistics(
    run: RunFolder,
    document: DocumentModel,
    pages: Sequence[Page],
    section: StatisticsSection,
    inputs: Mapping[str, str],
    *,
    seconds_between_saves: float = 15.0,
) -> Statistics:
    """Runs the pages through the model and writes ``statistics.json`` and ``.safetensors``.

    Positions of prompt and answer count as text, those that hold image features as image, padding never.
    Where the logits are made, only positions whose next token is judged count, as text: a server computes no
    others. Goes on where a killed process stopped.

    Args:
        run: The run folder.
        document: The model, loaded and not quantized.
        pages: Calibration pages, each with a text.
        section: `statistics` of the recipe.
        inputs: SHA-256 of everything that the stage is made from, by name.
        seconds_between_saves: How much work a kill may cost; no figure depends on it.

    Raises:
        WeightValueError: A parameter holds NaN or Inf.
        ModelError: Activations are not finite.
        PagesError: There is no page, or one has no text.
        ImageError: An image cannot be read.
        PageSizeError: A page exceeds the context of the model.
        OutputError: The folder is not writable or the disk is full.
    """
    if not pages:
        raise PagesError("calibration pages", expected="at least one", given="none", fix="add pages")
    require_finite_parameters(document)
    sites = sites_of(document.map)
    partial = run.partial(Statistics.STAGE, {**inputs, "environment": environment_digest(document)})
    totals = _Totals(document, sites)
    totals.restore(partial)
    batches = plan_batches(pages, section.batch_size)
    done = sum(map(len, batches[: totals.num_batches]))
    with progress_bar("statistics", len(pages), "pages", done=done) as advance:
        saved = time.monotonic()
        for number, encoded in encoded_batches(document, batches, first=totals.num_batches):
            _add_batch(totals, document, sites, encoded)
            totals.require_finite(batches[number])
            totals.num_batches = number + 1
            if time.monotonic() - saved >= seconds_between_saves:
                totals.save(partial)
                saved = time.monotonic()
            advance(len(batches[number]))
    statistics = _write(run, document, sites, totals, len(pages), inputs)
    partial.discard()
    return statistics


def _add_batch(totals: _Totals, document: DocumentModel, sites: Sequence[Site], encoded: Encoded) -> None:
    positions = {is_head: positions_of(encoded, is_head=is_head) for is_head in (False, True)}
    valid = encoded.valid.flatten().nonzero().squeeze(1)

    def observe(site: Site, x: Tensor) -> None:
        flat, found = x.flatten(0, 1), positions[site.is_head]
        totals.add_input(site, "text", flat.index_select(0, found.text))
        totals.add_input(site, "image", flat.index_select(0, found.image))

    def observe_cache(name: str, keys: Tensor, values: Tensor) -> None:
        totals.add_cache(name, keys, values, valid)

    with watch_inputs(document, sites, observe), watch_caches(document, observe_cache):
        forward(document, encoded)


def _write(
    run: RunFolder,
    document: DocumentModel,
    sites: Sequence[Site],
    totals: _Totals,
    num_pages: int,
    inputs: Mapping[str, str],
) -> Statistics:
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
    )
    run.save(statistics)
    return statistics
