"""Collects, at some sites at once, what rounding needs to know of activations: a Hessian and samples of rows.

Which rows are sampled depends on the pages alone. Sites of a block are taken in waves that fit into a given
memory; each wave takes all pages through that block. Knows no format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ocrquant.adapters.model import DocumentModel, Encoded
from ocrquant.calibrate.passes import DecoderPasses
from ocrquant.calibrate.sites import Positions, Site, positions_of, watch_inputs
from ocrquant.pages import Page
from ocrquant.rounding import Rows

__all__ = ["Balance", "Collected", "PageSplit", "collect", "waves"]

# Rows of all pages together, half of them text: few enough that judging costs less than rounding.
_FIT_ROWS = 1024
_HELD_BACK_ROWS = 2048

# Memory of one wave on a CPU, and the least on a GPU.
_WAVE_BYTES = 2 << 30


@dataclass(frozen=True, slots=True)
class PageSplit:
    """Batches of pages to fit on, and of pages to judge on."""

    fit: list[list[Page]]
    held_back: list[list[Page]]

    @property
    def batches(self) -> list[list[Page]]:
        """All batches, those to fit on first."""
        return [*self.fit, *self.held_back]

    def place(self, number: int) -> tuple[int, int]:
        """Of which part a batch is, 0 to fit on and 1 to judge on, and its number in it."""
        return (0, number) if number < len(self.fit) else (1, number - len(self.fit))

    def quota(self, part: int) -> int:
        """Rows of each kind of position to take from each page of a part."""
        batches, num_rows = ((self.fit, _FIT_ROWS), (self.held_back, _HELD_BACK_ROWS))[part]
        return -(-num_rows // 2 // max(1, sum(map(len, batches))))


@dataclass(frozen=True, slots=True)
class Balance:
    """Weight of one position of text and of one of an image, so that both kinds weigh the same in total."""

    text: float
    image: float

    @classmethod
    def of_counts(cls, text: int, image: int) -> Balance:
        """The balance of so many positions of each kind."""
        kinds = max(1, (text > 0) + (image > 0))
        return cls(*(1.0 / kinds / count if count else 0.0 for count in (text, image)))


@dataclass(frozen=True, slots=True)
class Collected:
    """What the pages showed at one site.

    Attributes:
        hessian: float32 [in, in]: sum of x xᵀ over the pages to fit on, text and image balanced.
        fit: Sample of rows of those pages.
        held_back: Sample of rows of the pages to judge on.
    """

    hessian: Tensor
    fit: Rows
    held_back: Rows


@dataclass(slots=True)
class _Sample:
    """Rows of one site, text and image apart, in the dtype of the model."""

    text: list[Tensor] = field(default_factory=list)
    image: list[Tensor] = field(default_factory=list)

    def add(self, x: Tensor, chosen: Positions) -> None:
        for rows, positions in ((self.text, chosen.text), (self.image, chosen.image)):
            if len(positions):
                rows.append(x.index_select(0, positions))

    def rows(self, width: int, device: torch.device) -> Rows:
        parts = [torch.cat(part).float() for part in (self.text, self.image) if part]
        if not parts:
            return Rows(torch.zeros(0, width, device=device), torch.zeros(0, device=device))
        weights = [torch.full((len(part),), 1.0 / len(part) / len(parts), device=device) for part in parts]
        return Rows(torch.cat(parts), torch.cat(weights))


def waves(sites: Sequence[Site], device: torch.device) -> list[list[Site]]:
    """Consecutive sites whose Hessians and samples fit into memory together; each has at least one.

    Results do not depend on the cut, only how often the pages go through the block.
    """
    limit = _WAVE_BYTES
    if device.type == "cuda":
        limit = max(limit, torch.cuda.mem_get_info(device)[0] // 3)
    found: list[list[Site]] = []
    used = 0
    for site in sites:
        num_bytes = site.in_features * (4 * site.in_features + 2 * (_FIT_ROWS + _HELD_BACK_ROWS))
        if not found or used + num_bytes > limit:
            found.append([])
            used = 0
        found[-1].append(site)
        used += num_bytes
    return found


def collect(
    document: DocumentModel,
    passes: DecoderPasses,
    step: int,
    sites: Sequence[Site],
    split: PageSplit,
    balances: Mapping[str, Balance],
    *,
    keep: bool,
) -> dict[str, Collected]:
    """Takes all pages through one block.

    Args:
        document: The model.
        passes: The pages on their way, those to fit on first.
        step: Index of the block; the number of blocks for the head.
        sites: Sites in it to look at, perhaps none.
        split: The pages.
        balances: Name of a site -> weight of its positions in the Hessian.
        keep: Whether the following block will be asked for.

    Returns:
        Name of a site -> what was found.

    Raises:
        OutputError: The disk is full.
    """
    device = document.device
    hessians = {s.name: torch.zeros(s.in_features, s.in_features, device=device) for s in sites}
    samples = {site.name: (_Sample(), _Sample()) for site in sites}
    for number in range(len(split.batches)):
        encoded, part, place = passes.batch(number), *split.place(number)
        everything = {head: positions_of(encoded, is_head=head) for head in (False, True)}
        quota = split.quota(part)
        chosen = {
            head: _chosen(positions, encoded, quota, seed=2 * place + part)
            for head, positions in everything.items()
        }

        def observe(
            site: Site,
            flat: Tensor,
            tokens: Tensor | None,
            part: int = part,
            all_: dict[bool, Positions] = everything,
            chosen: dict[bool, Positions] = chosen,
        ) -> None:
            samples[site.name][part].add(flat, chosen[site.is_head].rows_of(tokens))
            if part == 0:
                rows = all_[site.is_head].rows_of(tokens)
                _add_moments(hessians[site.name], flat, rows, balances[site.name])

        with watch_inputs(document, sites, observe):
            passes.run(step, encoded, number, keep=keep)
    return {
        site.name: Collected(
            hessians[site.name], *(s.rows(site.in_features, device) for s in samples[site.name])
        )
        for site in sites
    }


def _add_moments(hessian: Tensor, x: Tensor, positions: Positions, balance: Balance) -> None:
    for chosen, weight in ((positions.text, balance.text), (positions.image, balance.image)):
        if len(chosen):
            rows = x.index_select(0, chosen).float()
            hessian.addmm_(rows.T, rows, alpha=weight)


def _chosen(positions: Positions, encoded: Encoded, quota: int, *, seed: int) -> Positions:
    """At most ``quota`` positions of each kind from each page, drawn by a generator of its own."""
    generator = torch.Generator().manual_seed(seed)
    num_pages, length = encoded.valid.shape
    drawn = []
    for flat in (positions.text, positions.image):
        here = flat.cpu()
        page_of = here // length
        picked = []
        for page in range(num_pages):
            own = here[page_of == page]
            picked.append(own[torch.randperm(len(own), generator=generator)[:quota].sort().values])
        drawn.append(torch.cat(picked).to(flat.device))
    return Positions(*drawn)
