"""What a drafter is: sizes, the target that it was made for, and the rules of its attention.

Everything that differs between implementations of DFlash (windows, whether a block sees itself in both
directions, which layers are tapped) is written down when a drafter is trained and read when it is used.
Knows numbers and their ranges; knows no tensor.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ocrquant.errors import ModelError

__all__ = ["DFLASH", "DFLASH2", "DrafterConfig", "default_taps"]

DFLASH: Final = "DFlashDraftModel"
DFLASH2: Final = "DFlash2DraftModel"


def default_taps(num_layers: int, count: int) -> tuple[int, ...]:
    """Layers of a target whose outputs a drafter reads where nobody chooses others.

    The rule of the published drafters: evenly from layer 1 to layer L - 3, rounded half to even; the middle
    one where there is one.

    Args:
        num_layers: L, decoder layers of the target.
        count: How many.
    """
    if count == 1:
        return (num_layers // 2,)
    return tuple(round(1 + i * (num_layers - 4) / (count - 1)) for i in range(count))


class DrafterConfig(BaseModel):
    """Sizes and rules of a drafter; ``config.json`` of its folder.

    Attributes:
        architectures: ``DFlashDraftModel``, or ``DFlash2DraftModel`` with local convolutions and a selector.
        block_size: Tokens of a block: the last emitted one, then drafts.
        target_layer_ids: Layers of the target, from 0, whose output the drafter reads.
        target_sha256: Digest of the target's embedding, head and sizes; see `drafter.folder.target_digest`.
        mask_token_id: Token of the target's vocabulary that stands for a draft that is still open.
        vocab_size: Of the target.
        hidden_size: Of the target and of the drafter.
        intermediate_size: Inner width of the MLPs.
        num_hidden_layers: Draft layers.
        num_attention_heads: Query heads.
        num_key_value_heads: Heads of keys and values.
        head_dim: Width of a head.
        rms_norm_eps: Of all norms.
        rope_theta: Base of the rotary positions, which are token indices, whatever positions the target has.
        layer_types: For each layer ``full_attention`` or ``sliding_attention``.
        sliding_window: Context tokens that a sliding layer sees; None without such layers.
        window_lower: Whether a window ends so many tokens before the anchor of the block, or before each of
            its tokens.
        block_attention: Whether a token of a block sees all of its block, or what comes before it.
        conv_kernel_size: Taps of the local convolutions (DFlash2).
        conv_group_size: Channels that share one dynamic kernel (DFlash2).
        selector_rank: Width of the selector's codebooks (DFlash2).
        selector_top_k: Candidates of a slot (DFlash2).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    architectures: tuple[Literal["DFlashDraftModel", "DFlash2DraftModel"]]
    model_type: Literal["dflash"] = "dflash"
    dtype: Literal["bfloat16"] = "bfloat16"
    block_size: int = Field(ge=2, le=64)
    target_layer_ids: tuple[int, ...] = Field(min_length=1)
    target_sha256: str = Field(pattern="^[0-9a-f]{64}$")
    mask_token_id: int = Field(ge=0)
    vocab_size: int = Field(ge=2)
    hidden_size: int = Field(ge=1)
    intermediate_size: int = Field(ge=1)
    num_hidden_layers: int = Field(ge=1)
    num_attention_heads: int = Field(ge=1)
    num_key_value_heads: int = Field(ge=1)
    head_dim: int = Field(ge=2)
    rms_norm_eps: float = Field(default=1e-6, gt=0)
    rope_theta: float = Field(default=10_000.0, gt=0)
    layer_types: tuple[Literal["full_attention", "sliding_attention"], ...]
    sliding_window: int | None = Field(default=None, ge=1)
    window_lower: Literal["anchor", "query"] = "anchor"
    block_attention: Literal["bidirectional", "causal"] = "bidirectional"
    conv_kernel_size: int | None = Field(default=None, ge=1)
    conv_group_size: int | None = Field(default=None, ge=1)
    selector_rank: int | None = Field(default=None, ge=1)
    selector_top_k: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.layer_types) != self.num_hidden_layers:
            raise ValueError(f"{len(self.layer_types)} layer_types for {self.num_hidden_layers} layers")
        if list(self.target_layer_ids) != sorted(set(self.target_layer_ids)):
            raise ValueError("target_layer_ids must rise")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError("num_attention_heads must be a multiple of num_key_value_heads")
        if ("sliding_attention" in self.layer_types) != (self.sliding_window is not None):
            raise ValueError("sliding_window belongs to sliding layers, and they need it")
        own = (self.conv_kernel_size, self.conv_group_size, self.selector_rank, self.selector_top_k)
        if any((value is not None) != self.is_second for value in own):
            raise ValueError(f"{DFLASH2} and only it states the sizes of convolutions and selector")
        if self.conv_group_size and self.hidden_size % self.conv_group_size:
            raise ValueError("hidden_size must be a multiple of conv_group_size")
        if self.mask_token_id >= self.vocab_size:
            raise ValueError("mask_token_id must be a token of the vocabulary")
        return self

    @property
    def is_second(self) -> bool:
        """Whether it has what DFlash2 adds."""
        return self.architectures[0] == DFLASH2

    def as_second(self, *, conv_group_size: int = 16, rank: int = 256, top_k: int = 16) -> DrafterConfig:
        """The DFlash2 drafter of the same sizes, with two-tap convolutions."""
        changes: dict[str, Any] = {
            "architectures": (DFLASH2,),
            "conv_kernel_size": 2,
            "conv_group_size": conv_group_size,
            "selector_rank": rank,
            "selector_top_k": top_k,
        }
        return DrafterConfig(**self.model_dump() | changes)

    @classmethod
    def read(cls, path: Path) -> DrafterConfig:
        """Reads ``config.json``.

        Raises:
            ModelError: It is not there, or is no configuration of a drafter.
        """
        try:
            return cls.model_validate_json(path.read_text(encoding="utf-8"))
        except (OSError, ValidationError) as error:
            fix = "take a folder that `ocrquant drafter train` wrote"
            raise ModelError(path, expected="the configuration of a drafter", given=error, fix=fix) from error

    def render(self) -> str:
        """The text of ``config.json``."""
        return json.dumps(self.model_dump(mode="json", exclude_none=True), indent=2) + "\n"
