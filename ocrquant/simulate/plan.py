"""A plan put into a Hugging Face model and taken out again, leaving every module and bit as it was.

Knows how to swap linears, norm weights and cache writes by the names of modules. Does not know which linears
belong together, nor why a precision was chosen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ocrquant.artifacts import KvScales
from ocrquant.errors import ModelError, ShapeError
from ocrquant.formats.weights import scale_columns
from ocrquant.simulate.kv_cache import quantize_cache_writes
from ocrquant.simulate.linear import QuantizedLinear, SimulatedLinear
from ocrquant.stored_parameter import StoredParameter

__all__ = ["Smoothing", "apply_plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Smoothing:
    """Norms whose output is divided channel by channel, and the linears that make up for it.

    Attributes:
        norms: New weight by name of the norm, in the dtype of the model.
        columns: What the columns of a bf16 linear are multiplied by, float32 [in], by its name: all linears
            that read one of the norms. Quantized weights contain it already.
        dtype: What a checkpoint stores those bf16 linears in. A model that runs in float32 rounds them to it
            all the same; left out, they keep the precision of the model.
    """

    norms: Mapping[str, Tensor] = field(default_factory=dict)
    columns: Mapping[str, Tensor] = field(default_factory=dict)
    dtype: torch.dtype | None = None


@contextmanager
def apply_plan(
    model: nn.Module,
    linears: Mapping[str, SimulatedLinear],
    *,
    smoothing: Smoothing | None = None,
    kv: Sequence[KvScales] = (),
) -> Iterator[None]:
    """Quantizes a model for the length of a ``with`` block.

    Blocks nest: smoothing may be applied once outside, single groups inside.

    Args:
        model: The model, on one device or several. Weights that are on the disk are changed as they are read.
        linears: Quantized linears by the names of the ``nn.Linear`` modules that they stand in for.
        smoothing: Folded into norms and into those of its linears that are not in ``linears``.
        kv: FP8 scales of the caches of full-attention layers; a layer that is not listed keeps bf16.

    Raises:
        ModelError: A name is no such module, a linear is quantized already, or the weight of a linear to
            be smoothed belongs to another module too.
        ShapeError: A weight does not have the shape of the module that it is for.
    """
    with ExitStack() as undo:
        for name, linear in linears.items():
            undo.callback(_swap(model, name, linear))
        if smoothing is not None:
            for name, weight in smoothing.norms.items():
                _check_shape(name, tuple(_module(model, name).weight.shape), tuple(weight.shape))
                undo.callback(_change_weight(model, name, _taking(weight)))
            _check_untied(model, smoothing.columns)
            for name in smoothing.columns.keys() - linears.keys():
                scaling = _scaling(smoothing.columns[name], smoothing.dtype)
                undo.callback(_change_weight(model, name, scaling))
        for scales in kv:
            attention = _module(model, scales.name)
            undo.callback(
                quantize_cache_writes(scales.name, attention, scales.k_decode_scale, scales.v_decode_scale)
            )
        yield


def _swap(model: nn.Module, name: str, linear: SimulatedLinear) -> Callable[[], None]:
    original = _module(model, name)
    if type(original) is not nn.Linear:
        raise ModelError(
            name,
            expected="an nn.Linear",
            given=type(original).__name__,
            fix="name a linear of this model that no other plan has quantized",
        )
    _check_shape(name, tuple(original.weight.shape), linear.shape)
    parent_name, _, child = name.rpartition(".")
    parent = model.get_submodule(parent_name)
    if not isinstance(original.weight, StoredParameter):
        linear = linear.to(original.weight.device)
    setattr(parent, child, QuantizedLinear(linear, original.bias))
    return lambda: setattr(parent, child, original)


def _taking(weight: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda original: weight.to(original.device)


def _scaling(factors: Tensor, dtype: torch.dtype | None) -> Callable[[Tensor], Tensor]:
    return lambda original: scale_columns(original.to(dtype or original.dtype), factors.to(original.device))


def _change_weight(model: nn.Module, name: str, function: Callable[[Tensor], Tensor]) -> Callable[[], None]:
    """Changes a weight now, or, where it is on the disk, whenever it is read."""
    parameter = _module(model, name).weight
    if isinstance(parameter, StoredParameter):
        return parameter.change(function)
    original = parameter.data

    def restore() -> None:
        parameter.data = original

    parameter.data = function(original).to(original.dtype)
    return restore


def _module(model: nn.Module, name: str) -> Any:
    try:
        return model.get_submodule(name)
    except AttributeError as error:
        fix = "name modules of this model"
        raise ModelError(name, expected="a module", given="none of that name", fix=fix) from error


def _check_shape(name: str, expected: tuple[int, ...], given: tuple[int, ...]) -> None:
    if given != expected:
        fix = "use weights made from this very model"
        raise ShapeError(f"weight of {name}", expected=list(expected), given=list(given), fix=fix)


def _check_untied(model: nn.Module, names: Iterable[str]) -> None:
    """Refuses to scale a weight that another module reads as well, such as a head tied to the embedding."""
    owners = Counter(id(weight) for _, weight in model.named_parameters(remove_duplicate=False))
    for name in names:
        module = _module(model, name)
        if isinstance(module, nn.Linear) and owners[id(module.weight)] > 1:
            raise ModelError(
                name,
                expected="a weight of its own",
                given="one tied to another module",
                fix="leave the norm before it unsmoothed",
            )
