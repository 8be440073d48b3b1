"""What decoder layers consist of: linears in the order of their fused products, and what each of them reads.

Tables of the kinds of layer that document models use, with the widths that a configuration states. The groups
follow the fused products of vLLM (`qkv_proj`, `gate_up_proj`, `in_proj_qkvz`, `in_proj_ba`, the experts of a
layer as one). Knows no architecture by name and no tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = [
    "ATTENTION",
    "EXPERT",
    "FUSED_MLP",
    "GATED_DELTA_NET",
    "MLP",
    "SANDWICH",
    "Layer",
    "Part",
    "sparse_mlp",
    "widths",
]

INPUT, POST = "input_layernorm", "post_attention_layernorm"
GDN_BA_REASON = (
    "decay and write strength of the recurrence: an error stays in the state for the rest of the page"
)
ROUTER_REASON = "routing: an error sends a token to other experts"
EXPERT = "{expert}"
"""Stands in a member's name for the number of an expert."""


@dataclass(frozen=True, slots=True)
class Part:
    """Linears of a decoder layer that read one tensor and run as one product.

    Attributes:
        kind: Role of all members.
        members: Names below the layer in the order of the fused product; those that hold `EXPERT` stand for
            one linear an expert.
        norm: The norm of the layer that makes their input; None where no norm does.
        reason: Why they always stay bf16; empty for those that are searched.
    """

    kind: str
    members: tuple[str, ...]
    norm: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Layer:
    """A kind of decoder layer.

    Attributes:
        parts: Its linears in the order of the forward pass.
        others: Tensors that it holds beside them, norms included.
        caches: Whether it writes keys and values.
    """

    parts: tuple[Part, ...]
    others: tuple[str, ...]
    caches: bool = True

    def with_mlp(self, mlp: Layer) -> Layer:
        """This mixer followed by an MLP."""
        return Layer((*self.parts, *mlp.parts), (*self.others, *mlp.others), self.caches)


NORMS = tuple(f"{norm}.weight" for norm in (INPUT, POST))
ATTENTION = Layer(
    (
        Part("attention.qkv", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), INPUT),
        Part("attention.o", ("self_attn.o_proj",)),
    ),
    (*NORMS, "self_attn.q_norm.weight", "self_attn.k_norm.weight"),
)
GATED_DELTA_NET = Layer(
    (
        Part("gdn.qkvz", ("linear_attn.in_proj_qkv", "linear_attn.in_proj_z"), INPUT),
        Part("gdn.ba", ("linear_attn.in_proj_b", "linear_attn.in_proj_a"), INPUT, GDN_BA_REASON),
        Part("gdn.out", ("linear_attn.out_proj",)),
    ),
    (
        *NORMS,
        "linear_attn.A_log",
        "linear_attn.dt_bias",
        "linear_attn.conv1d.weight",
        "linear_attn.norm.weight",
    ),
    caches=False,
)
MLP = Layer(
    (Part("mlp.gate_up", ("mlp.gate_proj", "mlp.up_proj"), POST), Part("mlp.down", ("mlp.down_proj",))), ()
)
FUSED_MLP = Layer(
    (Part("mlp.gate_up", ("mlp.gate_up_proj",), POST), Part("mlp.down", ("mlp.down_proj",))), ()
)
SANDWICH = ("post_self_attn_layernorm.weight", "post_mlp_layernorm.weight")
"""Norms behind attention and MLP; nothing but the sum of the residual stream reads them."""


def sparse_mlp(shared: str, *, shared_gate: bool) -> Layer:
    """A mixture of experts.

    Args:
        shared: Name of the expert that sees every token, empty for none.
        shared_gate: Whether that one is weighted by a gate of its own.
    """
    parts = [Part("router", ("mlp.gate",), POST, ROUTER_REASON)]
    if shared_gate:
        parts.append(Part("shared.gate", (f"mlp.{shared}_gate",), POST, ROUTER_REASON))
    if shared:
        gate_up = (f"mlp.{shared}.gate_proj", f"mlp.{shared}.up_proj")
        parts += [Part("shared.gate_up", gate_up, POST), Part("shared.down", (f"mlp.{shared}.down_proj",))]
    one = f"mlp.experts.{EXPERT}"
    parts += [
        Part("experts.gate_up", (f"{one}.gate_proj", f"{one}.up_proj"), POST),
        Part("experts.down", (f"{one}.down_proj",)),
    ]
    return Layer(tuple(parts), ())


def widths(text: Mapping[str, Any], head: str) -> dict[str, tuple[int, int]]:
    """Member -> (out_features, in_features), as far as the configuration of a decoder states them.

    Args:
        text: The configuration.
        head: Name of the language-model head.
    """
    hidden, heads = text["hidden_size"], text["num_attention_heads"]
    head_dim = text.get("head_dim") or hidden // heads
    keys = (text.get("num_key_value_heads") or heads) * head_dim
    gates = 2 if "linear_num_key_heads" in text else 1  # Qwen3.5: q_proj also holds the output gate
    found = {
        "self_attn.q_proj": (gates * heads * head_dim, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, heads * head_dim),
        head: (text["vocab_size"], hidden),
    }
    found |= _mlp("mlp", hidden, text.get("intermediate_size"))
    experts = text.get("moe_intermediate_size")
    found |= _mlp(f"mlp.experts.{EXPERT}", hidden, experts)
    found |= _mlp("mlp.shared_expert", hidden, text.get("shared_expert_intermediate_size"))
    shared = text.get("n_shared_experts")
    found |= _mlp("mlp.shared_experts", hidden, experts * shared if experts and shared else None)
    if "linear_num_key_heads" in text:
        found |= _gated_delta_net(text, hidden)
    return found


def _mlp(prefix: str, hidden: int, inner: int | None) -> dict[str, tuple[int, int]]:
    if inner is None:
        return {}
    return {
        f"{prefix}.gate_proj": (inner, hidden),
        f"{prefix}.up_proj": (inner, hidden),
        f"{prefix}.gate_up_proj": (2 * inner, hidden),
        f"{prefix}.down_proj": (hidden, inner),
    }


def _gated_delta_net(text: Mapping[str, Any], hidden: int) -> dict[str, tuple[int, int]]:
    key = text["linear_num_key_heads"] * text["linear_key_head_dim"]
    values = text["linear_num_value_heads"]
    value = values * text["linear_value_head_dim"]
    return {
        "linear_attn.in_proj_qkv": (2 * key + value, hidden),
        "linear_attn.in_proj_z": (value, hidden),
        "linear_attn.in_proj_b": (values, hidden),
        "linear_attn.in_proj_a": (values, hidden),
        "linear_attn.out_proj": (hidden, value),
    }
