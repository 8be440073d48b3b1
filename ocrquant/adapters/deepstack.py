"""Image features that Qwen3-VL adds behind its first decoder layers, as part of those layers.

`transformers` adds them between layers. Whoever runs layers one by one would lose them there: the output of a
layer then is not the input of the next. Here each layer adds its own, from an argument that all layers are
called with. See DeepStack (arXiv 2406.04334).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import Tensor, nn

__all__ = ["DEEPSTACK", "add_in_layers"]

DEEPSTACK = "deepstack"
"""Argument of decoder and layers: mask of image positions [B, T], features [image, hidden] of each layer."""

_DONE = "adds_deepstack_in_layers"


def add_in_layers(decoder: Any) -> None:
    """Moves the sums of a Qwen3-VL decoder into its layers; other decoders stay as they are."""
    if not hasattr(decoder, "_deepstack_process") or getattr(decoder, _DONE, False):
        return
    setattr(decoder, _DONE, True)
    decoder.register_forward_pre_hook(_as_one_argument, with_kwargs=True)
    for index, layer in enumerate(decoder.layers):
        layer.forward = _adding(layer.forward, decoder._deepstack_process, index)


def _as_one_argument(
    module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    others = dict(keywords)
    mask, features = others.pop("visual_pos_masks", None), others.pop("deepstack_visual_embeds", None)
    if features is not None:
        others[DEEPSTACK] = (mask, list(features))
    return arguments, others


def _adding(
    forward: Callable[..., Tensor], add: Callable[[Tensor, Tensor, Tensor], Tensor], index: int
) -> Callable[..., Tensor]:
    @wraps(forward)
    def with_features(
        *arguments: Any, deepstack: tuple[Tensor, list[Tensor]] | None = None, **keywords: Any
    ) -> Tensor:
        output = forward(*arguments, **keywords)
        if deepstack is None or index >= len(deepstack[1]):
            return output
        mask, features = deepstack
        return add(output, mask, features[index])

    return with_features
