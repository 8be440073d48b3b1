"""From a family's row, a configuration and tensor headers to the map of a model.

The configuration says which modules exist, how wide they are and who reads what; the headers only confirm it.
Knows no architecture and loads no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from ocrquant.adapters.families import Family, Naming
from ocrquant.adapters.parts import EXPERT, Layer, Part, widths
from ocrquant.adapters.structure import (
    Group,
    LinearInfo,
    ModelMap,
    NormFold,
    TensorInfo,
    exchange_prefix,
)
from ocrquant.errors import ModelError
from ocrquant.stacked_experts import StackedWeight, stacked_weights

__all__ = ["TIED_REASON", "build_map", "text_config"]

MTP = "mtp"
TIED_REASON = "shares the weight of the embedding"
TABLES = ("pos_embed", "position_embedding", "class_embedding", "embed_tokens")
"""Ends of names of vision tensors that have two axes and are looked up, not multiplied with."""


def text_config(family: Family, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Settings of the decoder of a ``config.json``."""
    nested = config.get("text_config") or config.get("language_config")
    if family.flat:
        return {**config, **(nested or {})}
    if nested is None:
        raise KeyError("text_config")
    return dict(nested)


@dataclass(slots=True)
class _Builder:
    """Collects groups while it walks the layers; all names are those on disk."""

    tensors: Mapping[str, TensorInfo]
    widths: Mapping[str, tuple[int, int]]
    num_experts: int
    norm_offset: bool
    groups: list[Group] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)
    kept_groups: list[Group] = field(default_factory=list)
    folds: list[NormFold] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)

    def linear(self, name: str, member: str, kind: str, block: int | None) -> LinearInfo | None:
        """The linear of a name, or None where the checkpoint has none."""
        tensor = self.tensors.get(f"{name}.weight")
        if tensor is None:
            return None
        if len(tensor.shape) != 2 or self.widths.get(member, tensor.shape) != tensor.shape:
            wanted = self.widths.get(member)
            raise ModelError(
                f"{name}.weight in {tensor.file}",
                expected=f"{list(wanted)} by config.json" if wanted else "a matrix",
                given=list(tensor.shape),
                fix="take config and weights of the same model",
            )
        rows, columns = tensor.shape
        has_bias = f"{name}.bias" in self.tensors
        self.seen |= {f"{name}.weight", f"{name}.bias"}
        return LinearInfo(name, columns, rows, has_bias, kind, block)

    def part(self, prefix: str, part: Part, block: int) -> list[str]:
        """Adds the group of the members that exist; returns their names."""
        experts = range(self.num_experts if EXPERT in part.members[0] else 1)
        found = [
            self.linear(f"{prefix}.{member.replace(EXPERT, str(e))}", member, part.kind, block)
            for e in experts
            for member in part.members
        ]
        linears = tuple(linear for linear in found if linear is not None)
        names = [linear.name for linear in linears]
        if linears:
            group = Group(f"layers.{block}.{part.kind}", part.kind, block, linears)
            (self.kept_groups if part.reason else self.groups).append(group)
            if part.reason:
                self.kept |= dict.fromkeys(names, part.reason)
        return names

    def layer(self, prefix: str, block: int, layer: Layer) -> None:
        """Adds the groups and folds of a decoder layer."""
        self.seen |= {f"{prefix}.{name}" for name in layer.others}
        readers: dict[str, list[str]] = {}
        for part in layer.parts:
            names = self.part(prefix, part, block)
            if part.norm:
                readers.setdefault(part.norm, []).extend(names)
        # An unknown tensor may read a norm, which then may not change.
        is_known = all(name in self.seen for name in self.tensors if name.startswith(f"{prefix}."))
        for norm, names in readers.items() if is_known else ():
            self.fold(f"{prefix}.{norm}", names)

    def fold(self, norm: str, readers: list[str]) -> None:
        """Adds a norm that exists with its readers."""
        if f"{norm}.weight" in self.tensors and readers:
            self.folds.append(NormFold(norm, tuple(readers), offset=self.norm_offset))

    def head(self, name: str, member: str, norm: str, *, tied: bool, has_mtp: bool) -> None:
        """Adds the head and the final norm."""
        self.seen |= {f"{norm}.weight", f"{name}.weight"}
        if tied:
            self.kept[name] = TIED_REASON
            return
        linear = self.linear(name, member, "lm_head", None)
        if linear is None:
            raise ModelError(
                f"{name}.weight",
                expected="a tensor, since tie_word_embeddings is false",
                given="none",
                fix="take config and weights of the same model",
            )
        self.groups.append(Group("lm_head", "lm_head", None, (linear,)))
        # Multi-token-prediction heads read the final norm as well.
        if not has_mtp:
            self.fold(norm, [name])


def _naming(family: Family, tensors: Mapping[str, TensorInfo]) -> Naming:
    """The naming under which the checkpoint has an embedding."""
    for naming in family.namings:
        if f"{_on_disk(f'{family.decoder}.embed_tokens', naming)}.weight" in tensors:
            return naming
    raise ModelError(
        "weights",
        expected=f"a tensor {family.decoder}.embed_tokens.weight",
        given="none",
        fix="take config and weights of the same model",
    )


def _on_disk(module: str, naming: Naming) -> str:
    return exchange_prefix(module, [(after, before) for before, after in naming])


def _is_tied(
    config: Mapping[str, Any], text: Mapping[str, Any], head: str, tensors: Mapping[str, TensorInfo]
) -> bool:
    # transformers reads the outer key, vLLM that of the text side: either one makes the weight shared
    # somewhere. Published configurations leave out what is the default of their family.
    stated = [x["tie_word_embeddings"] for x in (text, config) if "tie_word_embeddings" in x]
    return any(stated) if stated else f"{head}.weight" not in tensors


def build_map(
    architecture: str, family: Family, config: Mapping[str, Any], tensors: Mapping[str, TensorInfo]
) -> ModelMap:
    """The map of a model folder.

    Args:
        architecture: Class name of the model.
        family: Its row.
        config: `config.json`.
        tensors: All tensors of the checkpoint.

    Raises:
        KeyError: The configuration lacks a key.
        ModelError: The configuration contradicts the tensors.
    """
    text = text_config(family, config)
    layers = family.layers(text)
    naming = _naming(family, tensors)
    head = _on_disk(family.head, naming)
    blocks = _on_disk(f"{family.decoder}.layers", naming)
    norm = _on_disk(f"{family.decoder}.norm", naming)
    roots = (*(_on_disk(name, naming) for name in family.vision), *family.vision)
    vision = [name for name in tensors if name.startswith(tuple(f"{root}." for root in roots))]
    mtp = _mtp_tensors(tensors, blocks, len(layers))
    drafts = set(mtp)
    stacked = stacked_weights({name: t.shape for name, t in tensors.items() if name not in drafts})
    tensors = _unstacked(tensors, stacked)
    builder = _Builder(tensors, widths(text, family.head), _num_experts(text), family.norm_offset)
    builder.seen |= {f"{_on_disk(f'{family.decoder}.embed_tokens', naming)}.weight", *vision, *mtp}
    for block, layer in enumerate(layers):
        builder.layer(f"{blocks}.{block}", block, layer)
    tied = _is_tied(config, text, head, tensors)
    builder.head(head, family.head, norm, tied=tied, has_mtp=bool(mtp))
    return ModelMap(
        architecture=architecture,
        num_blocks=len(layers),
        block_prefix=blocks,
        groups=tuple(builder.groups),
        kept=builder.kept,
        kept_groups=tuple(builder.kept_groups),
        vision=tuple(sorted({name.rpartition(".")[0] for name in vision})),
        vision_linears=tuple(_matrices(vision, tensors)),
        norm_folds=tuple(builder.folds),
        kv_attention=tuple(f"{blocks}.{i}.self_attn" for i, layer in enumerate(layers) if layer.caches),
        tied_head=tied,
        mtp=mtp,
        other=tuple(name for name in tensors if name not in builder.seen),
        max_positions=int(text["max_position_embeddings"]),
        tensors=tensors,
        stacked=stacked,
        renamed=naming,
    )


def _unstacked(
    tensors: Mapping[str, TensorInfo], stacked: Mapping[str, StackedWeight]
) -> dict[str, TensorInfo]:
    """The tensors with those that hold all experts of a layer taken apart; draft heads stay as they are."""
    stacks = {weight.stack for weight in stacked.values()}
    found = {name: tensor for name, tensor in tensors.items() if name not in stacks}
    for name, weight in stacked.items():
        whole = tensors[weight.stack]
        num_bytes = whole.num_bytes // prod(whole.shape) * prod(weight.shape)
        found[name] = TensorInfo(whole.dtype, weight.shape, whole.file, num_bytes)
    return dict(sorted(found.items()))


def _num_experts(text: Mapping[str, Any]) -> int:
    for key in ("num_experts", "n_routed_experts", "num_local_experts"):
        if text.get(key):
            return int(text[key])
    return 0


def _mtp_tensors(tensors: Mapping[str, TensorInfo], blocks: str, num_blocks: int) -> tuple[str, ...]:
    """Tensors of multi-token-prediction heads: under a name of their own, or as layers beyond the last."""

    def is_beyond(name: str) -> bool:
        number = name.removeprefix(f"{blocks}.").partition(".")[0] if name.startswith(f"{blocks}.") else ""
        return number.isdecimal() and int(number) >= num_blocks

    return tuple(name for name in tensors if name.startswith(f"{MTP}.") or is_beyond(name))


def _matrices(names: list[str], tensors: Mapping[str, TensorInfo]) -> list[str]:
    """Modules of weights with two axes that are multiplied with."""
    modules = [name.removesuffix(".weight") for name in names if name.endswith(".weight")]
    return [
        module
        for module in modules
        if len(tensors[f"{module}.weight"].shape) == 2 and not module.endswith(TABLES)
    ]
