"""From what a recipe asks for to the configuration of a drafter, which has its target's sizes otherwise.

Knows the keys of a target's ``config.json``. Knows no weights but the target's ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ValidationError

from ocrquant.drafter.config import DFLASH, DrafterConfig, default_taps
from ocrquant.drafter.target import TargetEnds
from ocrquant.errors import RecipeError
from ocrquant.recipe import DrafterSection

__all__ = ["design_drafter"]

_NUM_TAPS = 5
"""Of the published drafters."""


def design_drafter(section: DrafterSection, ends: TargetEnds, config: Mapping[str, Any]) -> DrafterConfig:
    """The DFlash drafter that a recipe asks for; `DrafterConfig.as_second` makes its DFlash2.

    Args:
        section: Of the recipe.
        ends: Of the target.
        config: ``config.json`` of the target.

    Raises:
        RecipeError: The recipe asks for what the target does not have.
    """
    text = config.get("text_config", config)
    vocab, hidden = ends.embedding.shape
    heads = text["num_attention_heads"]
    layers = section.num_layers
    slides = section.sliding_window is not None
    kinds: list[Literal["sliding_attention", "full_attention"]] = [
        "sliding_attention" if slides and i < layers - 1 else "full_attention" for i in range(layers)
    ]
    mask = section.mask_token_id
    if mask is None:
        mask = config.get("video_token_id", text.get("pad_token_id") or 0)
    taps = section.taps or sorted(set(default_taps(ends.num_layers, min(_NUM_TAPS, ends.num_layers))))
    if taps[-1] >= ends.num_layers or taps[0] < 0:
        raise RecipeError(
            "drafter.taps",
            expected=f"layers 0 to {ends.num_layers - 1}",
            given=taps,
            fix="name layers of the target, from 0",
        )
    rotary = text.get("rope_parameters") or text
    try:
        return DrafterConfig(
            architectures=(DFLASH,),
            block_size=section.block_size,
            target_layer_ids=tuple(taps),
            target_sha256=ends.sha256,
            mask_token_id=mask,
            vocab_size=vocab,
            hidden_size=hidden,
            intermediate_size=section.intermediate_size or text["intermediate_size"],
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=text.get("num_key_value_heads", heads),
            head_dim=text.get("head_dim") or hidden // heads,
            rms_norm_eps=text.get("rms_norm_eps", 1e-6),
            rope_theta=rotary.get("rope_theta", 10_000.0),
            layer_types=tuple(kinds),
            # A window without a layer that slides would be a setting that does nothing.
            sliding_window=section.sliding_window if layers > 1 else None,
        )
    except ValidationError as error:
        given = "; ".join(str(e["msg"]) for e in error.errors())
        raise RecipeError(
            "drafter", expected="a drafter for this target", given=given, fix="correct the section"
        ) from error
