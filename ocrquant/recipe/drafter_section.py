"""What a recipe may say about a drafter for speculative decoding: its design, its pages, its training.

Knows keys, units and ranges. Does not know the target's sizes: what is left out is filled in from them later.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from ocrquant.recipe.base import Section, check_distinct, rule_broken

__all__ = ["DrafterPagesSection", "DrafterSection", "DrafterTrainingSection"]


class DrafterPagesSection(Section):
    """The pages whose transcriptions by the exported checkpoint a drafter learns from.

    Attributes:
        source: Folder or file of pages; `pages.source` by default. Pages of a source are split as for the
            run, so that a held-out document teaches nothing.
        num_pages: Pages to learn from, fewer where the source has fewer; all of them by default.
        num_heldout_pages: Held-out pages on which acceptance is measured.
    """

    source: str | None = Field(default=None, min_length=1)
    num_pages: int | None = Field(default=None, ge=1)
    num_heldout_pages: int = Field(default=64, ge=1)


class DrafterTrainingSection(Section):
    """How long and how fast a drafter learns.

    Attributes:
        num_steps: Updates of the DFlash drafter.
        num_second_steps: Further updates of the DFlash2 drafter, which begins as the DFlash one.
        muon_rate: Highest learning rate of the matrices.
        adam_rate: Highest learning rate of everything else.
        second_rate: What both are multiplied by for the DFlash2 drafter.
        max_rows: Tokens of a batch and process, of context and of blocks.
        max_anchors: Blocks of a page in a batch.
        decay: Slots after which the weight of a draft in the loss falls by e.
        seed: Of fresh weights, order and blocks.
    """

    num_steps: int = Field(default=20_000, ge=1)
    num_second_steps: int = Field(default=5_000, ge=1)
    muon_rate: float = Field(default=2e-2, gt=0)
    adam_rate: float = Field(default=5e-3, gt=0)
    second_rate: float = Field(default=0.5, gt=0)
    max_rows: int = Field(default=6144, ge=1)
    max_anchors: int = Field(default=16, ge=1)
    decay: float = Field(default=7.0, gt=0)
    seed: int = Field(default=0, ge=0)


class DrafterSection(Section):
    """A drafter of the exported checkpoint; `ocrquant drafter train` makes it.

    Attributes:
        design: ``dflash2`` adds local convolutions and a candidate selector to ``dflash``, which is trained
            first in either case.
        block_size: Tokens of a block: the last emitted one and the drafts behind it.
        num_layers: Draft layers.
        intermediate_size: Inner width of their MLPs; that of the target by default.
        taps: Layers of the target, from 0, whose outputs the drafter reads; by default five, evenly spread
            as in the published drafters.
        sliding_window: Context tokens that all layers but the last see; everything by default.
        mask_token_id: Token that stands for an open draft; by default one that no answer holds: that of
            videos, else that of padding.
        selector_rank: Width of the selector's codebooks (DFlash2).
        selector_top_k: Candidates of a slot (DFlash2).
        pages: What it learns from.
        training: How long and how fast.
    """

    design: Literal["dflash", "dflash2"] = "dflash2"
    block_size: int = Field(default=16, ge=2, le=64)
    num_layers: int = Field(default=5, ge=1)
    intermediate_size: int | None = Field(default=None, ge=1)
    taps: Annotated[list[int], AfterValidator(check_distinct)] | None = Field(default=None, min_length=1)
    sliding_window: int | None = Field(default=None, ge=1)
    mask_token_id: int | None = Field(default=None, ge=0)
    selector_rank: int = Field(default=256, ge=1)
    selector_top_k: int = Field(default=16, ge=1)
    pages: DrafterPagesSection = DrafterPagesSection()
    training: DrafterTrainingSection = DrafterTrainingSection()

    @model_validator(mode="after")
    def _taps_rise(self) -> Self:
        if self.taps is not None and self.taps != sorted(self.taps):
            raise rule_broken("taps that rise", self.taps, "sort them")
        return self
