"""What an engine must know of a model to make room for it: sizes of caches, states, positions and images.

Plain numbers; knows no tensors and no weights.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["AttentionSpec", "ModelSpec", "StateSpec", "VisionSpec"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """The layers that keep keys and values.

    Attributes:
        num_layers: How many there are.
        heads: Query heads.
        kv_heads: Heads of keys and values; divides ``heads``.
        head_dim: Width of each head.
    """

    num_layers: int
    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpec:
    """The Gated DeltaNet layers, which keep a state of fixed size for each request.

    Attributes:
        num_layers: How many there are.
        key_heads: Heads of queries and keys; divides ``value_heads``.
        value_heads: Heads of values, and of the state.
        key_dim: Width of a key head.
        value_dim: Width of a value head.
        conv_taps: Taps of the causal convolution; its tail holds one input less.
    """

    num_layers: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_taps: int

    @property
    def conv_channels(self) -> int:
        """Width of the convolved rows: q | k | v."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionSpec:
    """How an image becomes tokens.

    Attributes:
        patch_size: Side of a patch in pixels.
        temporal_patch_size: Frames in a patch.
        merge_size: Patches along each side that make one token.
    """

    patch_size: int
    temporal_patch_size: int
    merge_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A model in numbers.

    Attributes:
        architecture: Its name in ``config.json``.
        hidden: Width of the residual stream.
        vocab: Rows of the output head.
        max_positions: Most positions of a request.
        position_axes: Axes of a position: 3 for time, height and width.
        attention: Layers with keys and values.
        state: Layers with a recurrent state; None where there are none.
        vision: How images become tokens; None for a model of text alone.
        image_token_id: Token whose embedding is an image's; None for a model of text alone.
    """

    architecture: str
    hidden: int
    vocab: int
    max_positions: int
    position_axes: int
    attention: AttentionSpec
    state: StateSpec | None
    vision: VisionSpec | None
    image_token_id: int | None
