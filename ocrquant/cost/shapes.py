"""Sizes of the models that are planned for, and the precision of their parts under a plan.

Knows published configurations and counts weights, states, keys and values from them. Knows no machine and
no time. A model at hand is measured instead; see `ocrquant bench cost-table`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from ocrquant.formats import FORMATS, Precision

__all__ = ["DRAFTERS", "MODELS", "PLANS", "DrafterShape", "ModelShape", "Part", "Plan", "Product"]

Part = Literal["mlp", "attention", "delta", "ba", "head"]
"""``delta`` are the wide projections of Gated DeltaNet, ``ba`` the two narrow ones beside them."""

Plan = Mapping[Part, Precision]
"""Precision of every part of a model."""

_FP32, _BF16 = 4, 2


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product that a step runs `count` times with other weights.

    Attributes:
        part: What it belongs to.
        out_features: Rows of the weight.
        in_features: Columns of the weight.
        count: Layers that have it.
    """

    part: Part
    out_features: int
    in_features: int
    count: int

    @property
    def num_weights(self) -> int:
        """Weights of all layers."""
        return self.out_features * self.in_features * self.count

    def num_bytes(self, precision: Precision) -> int:
        """Bytes of all layers, scales included."""
        return self.count * FORMATS[precision].weight_bytes(self.out_features, self.in_features)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder of the Qwen3.5 kind: Gated DeltaNet, and full attention with an output gate in between.

    Attributes:
        name: Of the published model.
        hidden: Width of the residual stream.
        intermediate: Inner width of the MLP.
        num_layers: All layers.
        num_attention: Those with full attention; the others have Gated DeltaNet.
        heads: Query heads.
        kv_heads: Heads of keys and values.
        head_dim: Width of an attention head.
        key_heads: Key heads of Gated DeltaNet.
        value_heads: Value heads of Gated DeltaNet.
        state_dim: Width of a head of Gated DeltaNet, keys and values alike.
        conv_taps: Taps of the causal convolution.
        vocab: Rows of the output head.
    """

    name: str
    hidden: int
    intermediate: int
    num_layers: int = 32
    num_attention: int = 8
    heads: int = 16
    kv_heads: int = 4
    head_dim: int = 256
    key_heads: int = 16
    value_heads: int = 32
    state_dim: int = 128
    conv_taps: int = 4
    vocab: int = 248320

    @property
    def num_delta(self) -> int:
        """Layers with Gated DeltaNet."""
        return self.num_layers - self.num_attention

    @property
    def conv_channels(self) -> int:
        """Columns behind the convolution: queries, keys and values."""
        return (2 * self.key_heads + self.value_heads) * self.state_dim

    @property
    def products(self) -> tuple[Product, ...]:
        """All products of a step, those of one operand merged as servers merge them."""
        inner, value = self.heads * self.head_dim, self.value_heads * self.state_dim
        qkv = 2 * inner + 2 * self.kv_heads * self.head_dim
        return (
            Product("mlp", 2 * self.intermediate, self.hidden, self.num_layers),
            Product("mlp", self.hidden, self.intermediate, self.num_layers),
            Product("attention", qkv, self.hidden, self.num_attention),
            Product("attention", self.hidden, inner, self.num_attention),
            Product("delta", self.conv_channels + value, self.hidden, self.num_delta),
            Product("delta", self.hidden, value, self.num_delta),
            Product("ba", 2 * self.value_heads, self.hidden, self.num_delta),
            Product("head", self.vocab, self.hidden, 1),
        )

    @property
    def conv_bytes(self) -> int:
        """Weights of all convolutions, bf16."""
        return self.num_delta * self.conv_channels * self.conv_taps * _BF16

    @property
    def state_bytes(self) -> int:
        """Recurrent states of one request, float32, all layers."""
        return self.num_delta * self.value_heads * self.state_dim**2 * _FP32

    def record_bytes(self, element_bytes: int) -> int:
        """ReplaySSM's record of one token, all layers: u, the key of each key head, the gate in float32."""
        elements = (self.value_heads + self.key_heads) * self.state_dim
        return self.num_delta * (elements * element_bytes + self.value_heads * _FP32)

    @property
    def kv_elements(self) -> int:
        """Elements of keys and values of one token, all attention layers."""
        return self.num_attention * 2 * self.kv_heads * self.head_dim

    def attention_flop(self, rows: int, context: int) -> float:
        """Scores and sums of values of so many rows over so many tokens, all layers."""
        return 4.0 * self.num_attention * self.heads * self.head_dim * rows * context

    def launches(self, *, replay: bool) -> int:
        """Kernels of a step of one row class in the package's own runtime.

        A layer of either kind has two norms and three launches of the MLP. Gated DeltaNet adds two
        products of its input, convolution, recurrence, gated norm and output product; attention its product,
        the rotation that writes the cache, attention, gate and output product. Embedding and rotary table
        come before, two gathers, norm, head and sampling after. ReplaySSM moves its cursors behind all.
        """
        return self.num_layers * 5 + self.num_delta * 6 + self.num_attention * 5 + 2 + 5 + replay


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterShape:
    """A DFlash drafter: a few attention layers that read features of the target; no embedding, no head.

    Attributes:
        hidden: Width of its stream, that of the target.
        intermediate: Inner width of its MLPs.
        num_sliding: Layers with a window.
        num_full: Layers without.
        window: Tokens of context that a sliding layer reads.
        num_taps: Layers of the target whose outputs it reads.
        heads: Query heads.
        kv_heads: Heads of keys and values.
        head_dim: Width of a head.
    """

    hidden: int
    intermediate: int
    num_sliding: int = 5
    num_full: int = 1
    window: int = 4096
    num_taps: int = 5
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128

    @property
    def num_layers(self) -> int:
        """All draft layers."""
        return self.num_sliding + self.num_full

    @property
    def block_weights(self) -> int:
        """Weights that every token of a block passes."""
        inner, kv = self.heads * self.head_dim, 2 * self.kv_heads * self.head_dim
        layer = self.hidden * (2 * inner + kv) + 3 * self.hidden * self.intermediate
        return self.num_layers * layer

    @property
    def context_weights(self) -> int:
        """Weights that only tokens of the context pass: the projection of the tapped features."""
        return self.num_taps * self.hidden**2

    @property
    def kv_weights(self) -> int:
        """Weights of the keys and values, which tokens of the context pass as well."""
        return self.num_layers * self.hidden * 2 * self.kv_heads * self.head_dim

    def kv_elements(self, context: int) -> int:
        """Elements of keys and values that one request reads."""
        tokens = self.num_sliding * min(context, self.window) + self.num_full * context
        return tokens * 2 * self.kv_heads * self.head_dim

    @property
    def launches(self) -> int:
        """Nine a layer, four for new context, and embedding, norm, head and choice."""
        return 9 * self.num_layers + 8


MODELS: Mapping[str, ModelShape] = MappingProxyType(
    {
        shape.name: shape
        for shape in (
            ModelShape(name="qwen3.5-9b", hidden=4096, intermediate=12288),
            ModelShape(name="qwen3.5-4b", hidden=2560, intermediate=9216),
        )
    }
)
"""Decoders by name; sizes of transformers 5.17's classes, the inner width of 4B from its stated total."""

DRAFTERS: Mapping[str, DrafterShape] = MappingProxyType(
    {
        "qwen3.5-9b": DrafterShape(hidden=4096, intermediate=12288),
        "qwen3.5-4b": DrafterShape(hidden=2560, intermediate=9728),
    }
)
"""Drafters by the model that they are for: five sliding layers and one full, as z-lab/Qwen3.5-9B-DFlash."""


def _plan(mlp: Precision, wide: Precision, head: Precision) -> Plan:
    parts: dict[Part, Precision] = {
        "mlp": mlp,
        "attention": wide,
        "delta": wide,
        "ba": Precision.BF16,
        "head": head,
    }
    return MappingProxyType(parts)


PLANS: Mapping[str, Plan] = MappingProxyType(
    {
        "bf16": _plan(Precision.BF16, Precision.BF16, Precision.BF16),
        "fp8": _plan(Precision.FP8, Precision.FP8, Precision.BF16),
        "mixed": _plan(Precision.NVFP4, Precision.FP8, Precision.BF16),
        "mixed, fp8 head": _plan(Precision.NVFP4, Precision.FP8, Precision.FP8),
    }
)
"""``mixed``: MLPs in NVFP4, other linears in FP8, the head in bf16. The narrow projections stay bf16."""
