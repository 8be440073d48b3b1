"""The structure of Qwen3.5 vision-language models (`Qwen3_5ForConditionalGeneration`).

Knows from the configuration which modules exist, how wide they are and who reads what; the headers only
confirm it. Three of four decoder layers are Gated DeltaNet (arXiv 2412.06464), the others full attention
whose `q_proj` also holds the output gate. Follows `transformers.models.qwen3_5`; the groups follow the fused
products of vLLM's `qwen3_5.py` (`qkv_proj`, `gate_up_proj`, `in_proj_qkvz`, `in_proj_ba`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ocrquant.adapters.structure import Group, LinearInfo, ModelMap, NormFold, TensorInfo
from ocrquant.errors import ModelError

__all__ = ["ARCHITECTURE", "build_map"]

ARCHITECTURE = "Qwen3_5ForConditionalGeneration"

TEXT = "model.language_model"
VISION = "model.visual"
MTP = "mtp"
HEAD = "lm_head"
EMBEDDING = f"{TEXT}.embed_tokens"

GDN_BA_REASON = (
    "decay and write strength of the recurrence: an error stays in the state for the rest of the page"
)
TIED_REASON = "shares the weight of the embedding"

# Layer type -> (group, members in fused order, searchable); the norm before each group is that of its part.
MIXERS: dict[str, tuple[tuple[str, tuple[str, ...], bool], ...]] = {
    "linear_attention": (
        ("gdn.qkvz", ("linear_attn.in_proj_qkv", "linear_attn.in_proj_z"), True),
        ("gdn.ba", ("linear_attn.in_proj_b", "linear_attn.in_proj_a"), False),
        ("gdn.out", ("linear_attn.out_proj",), True),
    ),
    "full_attention": (
        ("attention.qkv", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), True),
        ("attention.o", ("self_attn.o_proj",), True),
    ),
}
MLP = (("mlp.gate_up", ("mlp.gate_proj", "mlp.up_proj"), True), ("mlp.down", ("mlp.down_proj",), True))
# What else a decoder layer of each type holds.
OTHER_MEMBERS: dict[str, tuple[str, ...]] = {
    "linear_attention": (
        "linear_attn.A_log",
        "linear_attn.dt_bias",
        "linear_attn.conv1d.weight",
        "linear_attn.norm.weight",
    ),
    "full_attention": ("self_attn.q_norm.weight", "self_attn.k_norm.weight"),
}
NORMS = ("input_layernorm.weight", "post_attention_layernorm.weight")
READS_INPUT_NORM = frozenset({"gdn.qkvz", "gdn.ba", "attention.qkv"})
READS_POST_NORM = frozenset({"mlp.gate_up"})

VISION_BLOCK_LINEARS = ("attn.qkv", "attn.proj", "mlp.linear_fc1", "mlp.linear_fc2")
VISION_MERGER_LINEARS = ("merger.linear_fc1", "merger.linear_fc2")


def _widths(text: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Member -> (out_features, in_features)."""
    hidden, inner = text["hidden_size"], text["intermediate_size"]
    query = text["num_attention_heads"] * text["head_dim"]
    key = text["num_key_value_heads"] * text["head_dim"]
    gdn_key = text["linear_num_key_heads"] * text["linear_key_head_dim"]
    gdn_value = text["linear_num_value_heads"] * text["linear_value_head_dim"]
    return {
        "linear_attn.in_proj_qkv": (2 * gdn_key + gdn_value, hidden),
        "linear_attn.in_proj_z": (gdn_value, hidden),
        "linear_attn.in_proj_b": (text["linear_num_value_heads"], hidden),
        "linear_attn.in_proj_a": (text["linear_num_value_heads"], hidden),
        "linear_attn.out_proj": (hidden, gdn_value),
        "self_attn.q_proj": (2 * query, hidden),
        "self_attn.k_proj": (key, hidden),
        "self_attn.v_proj": (key, hidden),
        "self_attn.o_proj": (hidden, query),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
        HEAD: (text["vocab_size"], hidden),
    }


def _layer_types(text: Mapping[str, Any]) -> list[str]:
    if text.get("layer_types"):
        return [str(kind) for kind in text["layer_types"]]
    every = int(text.get("full_attention_interval", 4))
    return [
        "full_attention" if (i + 1) % every == 0 else "linear_attention"
        for i in range(text["num_hidden_layers"])
    ]


@dataclass(slots=True)
class _Builder:
    """Collects groups while it walks the layers."""

    tensors: Mapping[str, TensorInfo]
    widths: Mapping[str, tuple[int, int]]
    groups: list[Group] = field(default_factory=list)
    kept_groups: list[Group] = field(default_factory=list)
    folds: list[NormFold] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)

    def linear(self, name: str, member: str, kind: str, block: int | None) -> LinearInfo | None:
        """The linear of a name, or None where the checkpoint has none."""
        tensor = self.tensors.get(f"{name}.weight")
        if tensor is None:
            return None
        rows, columns = self.widths[member]
        if tensor.shape != (rows, columns):
            raise ModelError(
                f"{name}.weight in {tensor.file}",
                expected=f"[{rows}, {columns}] by config.json",
                given=list(tensor.shape),
                fix="take config and weights of the same model",
            )
        has_bias = f"{name}.bias" in self.tensors
        self.seen |= {f"{name}.weight", f"{name}.bias"}
        return LinearInfo(name, columns, rows, has_bias, kind, block)

    def group(
        self, prefix: str, kind: str, members: tuple[str, ...], block: int, searchable: bool
    ) -> list[str]:
        """Adds the group of the members that exist; returns their names."""
        found = [self.linear(f"{prefix}.{member}", member, kind, block) for member in members]
        linears = tuple(linear for linear in found if linear is not None)
        if linears:
            group = Group(f"layers.{block}.{kind}", kind, block, linears)
            (self.groups if searchable else self.kept_groups).append(group)
        return [linear.name for linear in linears]

    def layer(self, block: int, layer_type: str) -> None:
        """Adds the groups and folds of a decoder layer."""
        prefix = f"{TEXT}.layers.{block}"
        self.seen |= {f"{prefix}.{name}" for name in (*NORMS, *OTHER_MEMBERS[layer_type])}
        readers: dict[str, list[str]] = {"input_layernorm": [], "post_attention_layernorm": []}
        for kind, members, searchable in (*MIXERS[layer_type], *MLP):
            names = self.group(prefix, kind, members, block, searchable)
            if kind in READS_INPUT_NORM:
                readers["input_layernorm"] += names
            elif kind in READS_POST_NORM:
                readers["post_attention_layernorm"] += names
        # An unknown tensor may read a norm, which then may not change.
        is_known = all(name in self.seen for name in self.tensors if name.startswith(f"{prefix}."))
        for norm, names in readers.items() if is_known else ():
            self.fold(f"{prefix}.{norm}", names)

    def fold(self, norm: str, readers: list[str]) -> None:
        """Adds a norm that exists with its readers."""
        if f"{norm}.weight" in self.tensors and readers:
            self.folds.append(NormFold(norm, tuple(readers), offset=True))

    def head(self, tied: bool) -> dict[str, str]:
        """Adds lm_head and the final norm; returns what is kept and why."""
        if tied:
            self.seen.add(f"{HEAD}.weight")
            return {HEAD: TIED_REASON}
        linear = self.linear(HEAD, HEAD, HEAD, None)
        if linear is None:
            raise ModelError(
                f"{HEAD}.weight",
                expected="a tensor, since tie_word_embeddings is false",
                given="none",
                fix="take config and weights of the same model",
            )
        self.groups.append(Group(HEAD, HEAD, None, (linear,)))
        # Multi-token-prediction heads read the final norm as well.
        if not any(name.startswith(f"{MTP}.") for name in self.tensors):
            self.fold(f"{TEXT}.norm", [HEAD])
        return {}


def _vision_linears(vision: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> tuple[str, ...]:
    blocks = [f"{VISION}.blocks.{i}.{name}" for i in range(vision["depth"]) for name in VISION_BLOCK_LINEARS]
    names = [*blocks, *(f"{VISION}.{name}" for name in VISION_MERGER_LINEARS)]
    return tuple(name for name in names if f"{name}.weight" in tensors)


def build_map(config: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> ModelMap:
    """The map of a Qwen3.5 folder.

    Args:
        config: `config.json` with every key of `text_config` and `vision_config` that this module reads.
        tensors: All tensors of the checkpoint.

    Raises:
        ModelError: The configuration lacks a key or contradicts the tensors.
    """
    text, vision = config["text_config"], config["vision_config"]
    types = _layer_types(text)
    if unknown := sorted(set(types) - set(MIXERS)):
        raise ModelError(
            "text_config.layer_types in config.json",
            expected=" or ".join(MIXERS),
            given=unknown[0],
            fix="take another model: this kind of layer is not supported",
        )
    # transformers reads the outer key, vLLM that of the text side: either one makes the weight shared
    # somewhere.
    tied = bool(text.get("tie_word_embeddings") or config.get("tie_word_embeddings"))
    builder = _Builder(tensors, _widths(text))
    builder.seen |= {f"{EMBEDDING}.weight", f"{TEXT}.norm.weight"}
    for block, layer_type in enumerate(types):
        builder.layer(block, layer_type)
    kept = {linear.name: GDN_BA_REASON for group in builder.kept_groups for linear in group.linears}
    kept |= builder.head(tied)
    modules = {name.rpartition(".")[0] for name in tensors if name.startswith(f"{VISION}.")}
    return ModelMap(
        architecture=ARCHITECTURE,
        num_blocks=len(types),
        block_prefix=f"{TEXT}.layers",
        groups=tuple(builder.groups),
        kept=kept,
        kept_groups=tuple(builder.kept_groups),
        vision=tuple(sorted(modules)),
        vision_linears=_vision_linears(vision, tensors),
        norm_folds=tuple(builder.folds),
        kv_attention=tuple(
            f"{TEXT}.layers.{i}.self_attn" for i, kind in enumerate(types) if kind == "full_attention"
        ),
        tied_head=tied,
        mtp=tuple(name for name in tensors if name.startswith(f"{MTP}.")),
        other=tuple(
            name
            for name in tensors
            if name not in builder.seen and not name.startswith((f"{VISION}.", f"{MTP}."))
        ),
        max_positions=int(text["max_position_embeddings"]),
        tensors=tensors,
    )
