"""An FP8 cache: keys and values pass through E4M3 when a full-attention layer writes them.

Knows the one call by which ``transformers`` attention hands keys (after rotary embedding) and values to its
cache. Does not know which layers have one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ocrquant.errors import ModelError
from ocrquant.formats import fp8

__all__ = ["quantize_cache_writes"]

_ARGUMENT = "past_key_values"


def quantize_cache_writes(
    name: str, attention: nn.Module, k_decode_scale: float, v_decode_scale: float
) -> Callable[[], None]:
    """Makes an attention module quantize what it writes; without a cache, what it attends to, as servers do.

    Args:
        name: Name of the module, for errors.
        attention: A module whose ``forward`` takes ``past_key_values`` and calls its ``update``.
        k_decode_scale: Scale of keys: stored codes are multiplied by it.
        v_decode_scale: Scale of values.

    Returns:
        Call it to undo this.

    Raises:
        ModelError: The module takes no ``past_key_values``.
    """
    if _ARGUMENT not in inspect.signature(attention.forward).parameters:
        raise ModelError(
            name,
            expected=f"an attention module that takes {_ARGUMENT}",
            given=type(attention).__name__,
            fix="leave the cache in bf16",
        )

    def wrap_cache(
        module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        cache = _QuantizedCache(kwargs.get(_ARGUMENT), k_decode_scale, v_decode_scale)
        return args, {**kwargs, _ARGUMENT: cache}

    return attention.register_forward_pre_hook(wrap_cache, with_kwargs=True).remove


class _QuantizedCache:
    """Stands before a cache, or where there is none, and quantizes what is written."""

    def __init__(self, cache: Any, k_decode_scale: float, v_decode_scale: float) -> None:
        self._cache = cache
        self._scales = (k_decode_scale, v_decode_scale)

    def update(self, keys: Tensor, values: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        keys, values = (_through_fp8(x, s) for x, s in zip((keys, values), self._scales, strict=True))
        if self._cache is None:
            return keys, values
        written: tuple[Tensor, Tensor] = self._cache.update(keys, values, *args, **kwargs)
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)


def _through_fp8(x: Tensor, decode_scale: float) -> Tensor:
    if torch.is_grad_enabled() and x.requires_grad:
        return _straight_through(x, decode_scale)
    return _quantize_dequantize(x, decode_scale)


def _quantize_dequantize(x: Tensor, decode_scale: float) -> Tensor:
    return fp8.quantize_dequantize(x, torch.tensor([decode_scale], device=x.device))


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, decode_scale: float) -> Tensor:
        return _quantize_dequantize(x, decode_scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


_straight_through: Callable[..., Tensor] = _StraightThrough.apply
