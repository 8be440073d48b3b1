"""Where activations are observed: one site for all linears that read one tensor, and hooks on it.

Knows the structure of a model by its `ModelMap` and the hooks of torch. Does not know what is done with an
activation, nor which pages it comes from, nor who runs the model. Nothing is traced, so custom code in a
vision encoder does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ocrquant.adapters import Group, ModelMap, NormFold
from ocrquant.adapters.experts import Routed
from ocrquant.adapters.model import DocumentModel, Encoded

__all__ = [
    "Positions",
    "Site",
    "experts_of",
    "positions_of",
    "sites_of",
    "watch_caches",
    "watch_experts",
    "watch_inputs",
]

EXPERTS = "experts."
"""How the kinds of groups of experts begin."""


@dataclass(frozen=True, slots=True)
class Site:
    """One tensor that searched linears read.

    Attributes:
        name: Linear whose input is observed, standing for all readers.
        groups: Groups that read the tensor, in the order of the map.
        fold: The norm that makes it, with all its readers; None where no norm does.
        is_head: Whether the readers make the logits, so that only positions that predict the answer matter.
    """

    name: str
    groups: tuple[Group, ...]
    fold: NormFold | None
    is_head: bool

    @property
    def watched(self) -> str:
        """Module whose input is the tensor: one expert alone would see the tokens that are sent to it."""
        kind = self.groups[0].kind
        if not kind.startswith(EXPERTS):
            return self.name
        experts = self.name.rsplit(".", 2)[0]
        return f"{experts}.routed" if kind == f"{EXPERTS}down" else experts

    @property
    def has_experts(self) -> bool:
        """Whether experts read the tensor, each of them only some tokens of it."""
        return any(group.kind.startswith(EXPERTS) for group in self.groups)

    @property
    def in_features(self) -> int:
        """Width of the tensor."""
        return self.groups[0].in_features

    @property
    def block(self) -> int | None:
        """Decoder block that it is in; None for the head."""
        return self.groups[0].block


def sites_of(model_map: ModelMap) -> list[Site]:
    """Sites of all searched groups, in the order of the forward pass."""
    folds = {linear: fold for fold in model_map.norm_folds for linear in fold.linears}
    readers: dict[str, list[Group]] = {}
    for group in model_map.groups:
        fold = folds.get(group.linears[0].name)
        readers.setdefault(fold.norm if fold else group.name, []).append(group)
    return [
        Site(
            groups[0].linears[0].name,
            tuple(groups),
            folds.get(groups[0].linears[0].name),
            is_head=groups[0].block is None,
        )
        for groups in readers.values()
    ]


def experts_of(model_map: ModelMap) -> dict[str, int]:
    """Modules of experts -> how many each holds."""
    groups = [group for group in model_map.groups if group.kind == f"{EXPERTS}down"]
    return {group.linears[0].name.rsplit(".", 2)[0]: len(group.linears) for group in groups}


@dataclass(frozen=True, slots=True)
class Positions:
    """Flat indices into the B x T positions of a batch, int64, padding left out.

    Attributes:
        text: Prompt and answer; at the head only positions whose next token is judged.
        image: Image features; none at the head, whose output for them nobody reads.
    """

    text: Tensor
    image: Tensor

    def rows_of(self, tokens: Tensor | None) -> Positions:
        """The same positions as rows of a tensor that holds some tokens, by their flat indices; None: all."""
        if tokens is None:
            return self
        return Positions(*(torch.isin(tokens, part).nonzero().squeeze(1) for part in (self.text, self.image)))


def positions_of(encoded: Encoded, *, is_head: bool) -> Positions:
    """The positions that count in a batch."""
    image = encoded.valid & encoded.image_mask
    text = encoded.valid & ~image
    if is_head:
        text, image = encoded.answer_mask, torch.zeros_like(image)
    return Positions(*(mask.flatten().nonzero().squeeze(1) for mask in (text, image)))


@contextmanager
def watch_inputs(
    document: DocumentModel, sites: Sequence[Site], observe: Callable[[Site, Tensor, Tensor | None], None]
) -> Iterator[None]:
    """Calls ``observe(site, x, tokens)`` with every input x [n, in] of each site while the model runs.

    Rows are all positions of a batch, flat, and `tokens` is None; or those that were sent to experts, expert
    by expert, and `tokens` [n] says which they are.
    """

    def hook_of(site: Site) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def hook(module: nn.Module, arguments: tuple[Any, ...]) -> None:
            tokens = arguments[1] if isinstance(module, Routed) else None
            observe(site, arguments[0].flatten(0, -2), tokens)

        return hook

    with ExitStack() as stack:
        for site in sites:
            handle = document.module(site.watched).register_forward_pre_hook(hook_of(site))
            stack.callback(handle.remove)
        yield


@contextmanager
def watch_experts(
    document: DocumentModel, names: Iterable[str], observe: Callable[[str, Tensor], None]
) -> Iterator[None]:
    """Calls ``observe(experts, chosen)`` with the experts [n, k] that each position is sent to.

    The names are those of modules of all experts of a layer.
    """

    def hook_of(name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def hook(module: nn.Module, arguments: tuple[Any, ...]) -> None:
            observe(name, arguments[1])

        return hook

    with ExitStack() as stack:
        for name in names:
            handle = document.module(name).register_forward_pre_hook(hook_of(name))
            stack.callback(handle.remove)
        yield


class _CacheProbe:
    """Stands in for the key-value cache of one layer, shows what is written and hands it back unchanged."""

    def __init__(self, observe: Callable[[Tensor, Tensor], None]) -> None:
        self._observe = observe

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        self._observe(keys, values)
        return keys, values


@contextmanager
def watch_caches(
    document: DocumentModel, names: Sequence[str], observe: Callable[[str, Tensor, Tensor], None]
) -> Iterator[None]:
    """Calls ``observe(attention, keys, values)`` with what full-attention layers cache while the model runs.

    Keys [B, heads, T, head_dim] come after their norm and rotary embedding.
    """

    def hook_of(name: str) -> Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]:
        def hook(
            module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]
        ) -> tuple[tuple[Any, ...], dict[str, Any]]:
            probe = _CacheProbe(lambda keys, values: observe(name, keys, values))
            return arguments, keywords | {"past_key_values": probe}

        return hook

    with ExitStack() as stack:
        for name in names:
            handle = document.module(name).register_forward_pre_hook(hook_of(name), with_kwargs=True)
            stack.callback(handle.remove)
        yield
