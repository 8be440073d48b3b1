"""What pico is trained on when: a table of stages, and the learning rate over all of them.

Knows counts of crops and shares of the mixture; knows nothing of tensors. Lengths are in crops, so that a
resumed run continues exactly where it stood.
"""

from __future__ import annotations

from dataclasses import dataclass

from ocrquant.pico.samples import Mixture


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stretch of training of `crops` pictures."""

    name: str
    crops: int
    mixture: Mixture
    with_text: bool
    corrupt: float = 0.0
    column_weight: float = 1.0
    place_weight: float = 0.0
    positions: int = 4000


STAGES = (
    Stage(
        name="columns",
        crops=62_000,
        mixture=Mixture(max_width=400, stack_share=0.0, block_share=0.0),
        with_text=False,
    ),
    Stage(
        name="spans",
        crops=40_000,
        mixture=Mixture(max_width=200, stack_share=0.05, block_share=0.0, stack_lines=3),
        with_text=True,
        corrupt=0.05,
        place_weight=0.5,
    ),
    Stage(
        name="lines",
        crops=40_000,
        mixture=Mixture(max_width=2000, stack_share=0.08, block_share=0.04, stack_lines=4),
        with_text=True,
        corrupt=0.05,
        column_weight=0.5,
        place_weight=0.3,
    ),
    Stage(
        name="blocks",
        crops=26_000,
        mixture=Mixture(max_width=2000, stack_share=0.10, block_share=0.20),
        with_text=True,
        corrupt=0.05,
        column_weight=0.3,
        place_weight=0.2,
        positions=5000,
    ),
    Stage(
        name="finish",
        crops=5_000,
        mixture=Mixture(max_width=2000, stack_share=0.20, block_share=0.50),
        with_text=True,
        corrupt=0.05,
        column_weight=0.3,
        place_weight=0.2,
        positions=5000,
    ),
)
WARMUP_CROPS = 6_000
DECAY_SHARE = 0.22


def stage_at(crops_seen: int) -> Stage | None:
    """The stage in which the crop number `crops_seen` falls; None after the last."""
    for stage in STAGES:
        if crops_seen < stage.crops:
            return stage
        crops_seen -= stage.crops
    return None


def total_crops() -> int:
    """Crops of the whole table."""
    return sum(stage.crops for stage in STAGES)


def rate_factor(crops_seen: int) -> float:
    """Learning-rate factor in [0, 1].

    Warm-up at the start of every stage that adds a loss, then flat, then down.
    """
    first_with_text = sum(stage.crops for stage in STAGES if not stage.with_text)
    since = crops_seen if crops_seen < first_with_text else crops_seen - first_with_text
    warm = min(1.0, (since + 1) / WARMUP_CROPS)
    end = total_crops()
    decay_start = end * (1.0 - DECAY_SHARE)
    fall = 1.0 if crops_seen < decay_start else max(0.0, (end - crops_seen) / (end - decay_start))
    return warm * max(fall, 0.01)
