"""Running figures of the tensors that linears read: largest values, sums of squares, counts.

Knows rows of activations. Knows neither pages nor files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import get_args

import torch
from torch import Tensor

from ocrquant.artifacts import ExpertStatistics, KvStatistics, PositionStatistics
from ocrquant.artifacts.statistics import Positions as PositionKind
from ocrquant.calibrate.sites import Site
from ocrquant.errors import ModelError
from ocrquant.pages import Page

__all__ = ["Totals"]

_KINDS: tuple[PositionKind, ...] = get_args(PositionKind)
_ROUTING = ":tokens"


class Totals:
    """Figures of some sites, caches and experts, over a batch or over all of them."""

    def __init__(
        self,
        sites: Sequence[Site],
        caches: Sequence[str],
        device: torch.device,
        experts: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.tensors: dict[str, Tensor] = {}
        for name, count in experts.items():
            self.tensors[f"{name}{_ROUTING}"] = torch.zeros(count, dtype=torch.int64)
        for site in sites:
            for kind in _KINDS:
                key = f"{site.name}:{kind}"
                self.tensors[f"{key}:amax"] = torch.zeros(site.in_features, device=device)
                self.tensors[f"{key}:squares"] = torch.zeros(
                    site.in_features, dtype=torch.float64, device=device
                )
                self.tensors[f"{key}:count"] = torch.zeros((), dtype=torch.int64)
        for name in caches:
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

    def add_routing(self, name: str, chosen: Tensor) -> None:
        """Counts experts [n, k] of positions."""
        total = self.tensors[f"{name}{_ROUTING}"]
        total += torch.bincount(chosen.flatten(), minlength=len(total)).to(total.device)

    def add(self, tensors: Mapping[str, Tensor]) -> None:
        """Adds what a batch showed."""
        for name, total in self.tensors.items():
            if name.endswith(":amax"):
                torch.maximum(total, tensors[name], out=total)
            else:
                total += tensors[name]

    def require_finite(self, pages: Sequence[Page]) -> None:
        """Refuses figures that a batch made NaN or infinite, naming the first site and the pages."""
        names = [name for name in self.tensors if name.endswith(":amax")]
        if not names:
            return
        largest = torch.stack([self.tensors[name].amax() for name in names])
        for name, is_finite in zip(names, torch.isfinite(largest).tolist(), strict=True):
            if not is_finite:
                raise ModelError(
                    f"input of {name.split(':')[0]} on pages {', '.join(page.id for page in pages)}",
                    expected="finite activations",
                    given="NaN or Inf",
                    fix="check that the model reads these pages in this precision without quantization",
                )

    def of_positions(self, site: Site, kind: PositionKind) -> PositionStatistics:
        """The figures of one kind of position."""
        key = f"{site.name}:{kind}"
        amax, count = self.tensors[f"{key}:amax"], int(self.tensors[f"{key}:count"])
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
            found[kind, "channel_amax"] = self.tensors[f"{key}:amax"]
            found[kind, "second_moment"] = (self.tensors[f"{key}:squares"] / count).float()
        return found

    def of_experts(self) -> list[ExpertStatistics]:
        """How many tokens each expert saw."""
        return [
            ExpertStatistics(name=name.removesuffix(_ROUTING), num_tokens=counts.tolist())
            for name, counts in self.tensors.items()
            if name.endswith(_ROUTING)
        ]

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
