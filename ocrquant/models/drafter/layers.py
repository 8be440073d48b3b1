"""One layer of a drafter: attention over what the target computed and over its own block, then the MLP.

Each sublayer stands between the two sides of a local convolution where the drafter has them (DFlash2). Knows
names and sizes of a layer; knows neither pages nor requests.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ocrquant.kernels.linear import PackedWeight, pack
from ocrquant.models.drafter.config import DrafterConfig
from ocrquant.models.weights import WeightReader

__all__ = ["AFTER", "BEFORE", "Convolution", "LayerWeights", "layer_weights", "norm_weight"]

BEFORE, AFTER = 0, 1
"""Sides of a sublayer."""


@dataclass(frozen=True, slots=True)
class Convolution:
    """A local convolution.

    Attributes:
        base: A[2, taps, hidden].
        added: [2 * taps * groups, hidden], what a token adds to the base.
    """

    base: Tensor
    added: PackedWeight


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """Weights of one layer; norms as what is added to 1.

    Attributes:
        input_norm: float32 [hidden].
        qkv: [q + k + v, hidden].
        context_kv: A[k + v, hidden], the part of `qkv` for tokens of the context.
        q_norm: float32 [head_dim].
        k_norm: float32 [head_dim].
        out: [hidden, q].
        post_norm: float32 [hidden].
        gate_up: [2 * inner, hidden].
        down: [hidden, inner].
        attention_conv: Around attention; None in DFlash.
        mlp_conv: Around the MLP; None in DFlash.
    """

    input_norm: Tensor
    qkv: PackedWeight
    context_kv: Tensor
    q_norm: Tensor
    k_norm: Tensor
    out: PackedWeight
    post_norm: Tensor
    gate_up: PackedWeight
    down: PackedWeight
    attention_conv: Convolution | None
    mlp_conv: Convolution | None


def norm_weight(reader: WeightReader, name: str, width: int) -> Tensor:
    """float32 [width], w - 1: the norms of a drafter multiply by w, those of the ops by 1 + weight."""
    return reader.take(f"{name}.weight", (width,)).to(torch.float32) - 1.0


def layer_weights(config: DrafterConfig, reader: WeightReader, number: int) -> LayerWeights:
    """Takes the weights of a layer.

    Args:
        config: Of the drafter.
        reader: Its tensors.
        number: Of the layer.

    Raises:
        ModelError: A tensor is missing or has another shape.
    """
    hidden, inner, width = config.hidden_size, config.intermediate_size, config.head_dim
    prefix, device = f"layers.{number}", reader.device
    queries, keys = config.num_attention_heads * width, config.num_key_value_heads * width

    def weight(name: str, out_features: int, in_features: int) -> Tensor:
        return reader.take(f"{prefix}.{name}.weight", (out_features, in_features))

    q = weight("self_attn.q_proj", queries, hidden)
    kv = torch.cat([weight(f"self_attn.{name}_proj", keys, hidden) for name in "kv"])
    gate_up = [weight(f"mlp.{name}_proj", inner, hidden) for name in ("gate", "up")]
    return LayerWeights(
        input_norm=norm_weight(reader, f"{prefix}.input_layernorm", hidden),
        qkv=pack([q, kv], device),
        context_kv=kv,
        q_norm=norm_weight(reader, f"{prefix}.self_attn.q_norm", width),
        k_norm=norm_weight(reader, f"{prefix}.self_attn.k_norm", width),
        out=pack([weight("self_attn.o_proj", hidden, queries)], device),
        post_norm=norm_weight(reader, f"{prefix}.post_attention_layernorm", hidden),
        gate_up=pack(gate_up, device),
        down=pack([weight("mlp.down_proj", hidden, inner)], device),
        attention_conv=_convolution(config, reader, f"{prefix}.attention_conv"),
        mlp_conv=_convolution(config, reader, f"{prefix}.mlp_conv"),
    )


def _convolution(config: DrafterConfig, reader: WeightReader, name: str) -> Convolution | None:
    taps, group, hidden = config.conv_kernel_size, config.conv_group_size, config.hidden_size
    if taps is None or group is None:
        return None
    added = reader.take(f"{name}.kernel_projection.weight", (2 * taps * (hidden // group), hidden))
    return Convolution(reader.take(f"{name}.base_kernel", (2, taps, hidden)), pack([added], reader.device))
