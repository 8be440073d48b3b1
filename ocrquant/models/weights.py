"""How the tensors of a checkpoint reach a model: each is taken exactly once, or left with a stated reason.

Knows names, shapes and what a quantized linear is. Does not know files; ``WeightSource`` is what an engine
implements on them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from ocrquant.errors import ModelError, WeightValueError
from ocrquant.formats import Precision
from ocrquant.formats.weights import FP8Weight, QuantizedWeight

__all__ = ["KV_SCALE_NAMES", "LinearWeight", "MappingSource", "WeightReader", "WeightSource"]

LinearWeight: TypeAlias = Tensor | QuantizedWeight

KV_SCALE_NAMES = ("k_scale", "v_scale")
"""Names under an attention module that stand for the scales of its cache in ``WeightSource.names``."""

_FIX = "take config and weights of the same model"
_MOST_NAMES = 5
_E4M3_NAN = 0x7F  # below its sign bit, so that a larger byte is negative or NaN


class WeightSource(Protocol):
    """The tensors of a checkpoint."""

    def names(self) -> set[str]:
        """Every tensor by its full name, and a quantized linear as the single name ``<linear>.weight``.

        What a quantized linear is stored as (codes, scales, the global scale of its input) is the source's
        business: it checks that all of it is there and lists none of it. Scales of an FP8 cache are listed as
        ``<attention>.k_scale`` and ``<attention>.v_scale``. Whatever else there is, is listed as it is.
        """
        ...

    def tensor(self, name: str) -> Tensor:
        """A tensor that is not quantized, on the CPU and in the dtype in which it is stored."""
        ...

    def quantized(self, linear: str) -> QuantizedWeight | None:
        """The weight of a quantized linear, by the linear's name; None where it is not quantized."""
        ...

    def input_encode_scale(self, linear: str) -> Tensor | None:
        """Calibrated global scale of the input of an NVFP4 linear, float32 [1]; None for another one."""
        ...

    def kv_scales(self, attention: str) -> tuple[float, float] | None:
        """Decode scales (key, value) of an attention module's cache; None for a cache without codes."""
        ...


class MappingSource:
    """Tensors in memory as a source: for benchmarks that make a model up, and for tests.

    Args:
        tensors: Tensors by their full names.
        quantized: Quantized weights by the names of their linears.
        input_encode_scales: float32 [1] by the names of NVFP4 linears.
        kv_scales: Decode scales (key, value) by the names of attention modules.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        quantized: Mapping[str, QuantizedWeight] | None = None,
        input_encode_scales: Mapping[str, Tensor] | None = None,
        kv_scales: Mapping[str, tuple[float, float]] | None = None,
    ) -> None:
        self._tensors = tensors
        self._quantized = quantized or {}
        self._input_encode_scales = input_encode_scales or {}
        self._kv_scales = kv_scales or {}

    def names(self) -> set[str]:
        """See ``WeightSource``."""
        scales = {f"{name}.{scale}" for name in self._kv_scales for scale in KV_SCALE_NAMES}
        return {*self._tensors, *(f"{name}.weight" for name in self._quantized), *scales}

    def tensor(self, name: str) -> Tensor:
        """See ``WeightSource``."""
        return self._tensors[name]

    def quantized(self, linear: str) -> QuantizedWeight | None:
        """See ``WeightSource``."""
        return self._quantized.get(linear)

    def input_encode_scale(self, linear: str) -> Tensor | None:
        """See ``WeightSource``."""
        return self._input_encode_scales.get(linear)

    def kv_scales(self, attention: str) -> tuple[float, float] | None:
        """See ``WeightSource``."""
        return self._kv_scales.get(attention)


class WeightReader:
    """Keeps account of what a model takes from a source; call ``finish`` when the model is made.

    Args:
        source: The checkpoint.
        dtype: Dtype of activations, in which unquantized weights are handed out.
        device: Where tensors go.

    Attributes:
        num_bytes: Of all tensors handed out by ``take`` so far.
    """

    def __init__(self, source: WeightSource, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype = dtype
        self.device = device
        self.num_bytes = 0
        self._source = source
        self._names = source.names()
        self._taken: set[str] = set()
        self._ignored: dict[str, str] = {}

    @property
    def ignored(self) -> Mapping[str, str]:
        """Tensors that the model leaves, with the reason."""
        return self._ignored

    def has(self, name: str) -> bool:
        """Whether the checkpoint has a tensor of this name."""
        return name in self._names

    def take(self, name: str, shape: Iterable[int], dtype: torch.dtype | None = None) -> Tensor:
        """A tensor that is not quantized.

        Args:
            name: Its full name.
            shape: What it must be.
            dtype: What it is handed out in; that of activations when left out.

        Raises:
            ModelError: It is missing, of another shape, quantized, or taken before.
        """
        tensor = self._plain(name, shape, dtype or self.dtype)
        self.num_bytes += tensor.nbytes
        return tensor

    def take_linear(self, linear: str, out_features: int, in_features: int) -> LinearWeight:
        """The weight of a linear as it is stored: quantized, or a tensor in the dtype of activations.

        Args:
            linear: Name of the linear.
            out_features: Rows that it must have.
            in_features: Columns that it must have.

        Raises:
            ModelError: It is missing, of another shape, or taken before.
        """
        weight = self._source.quantized(linear)
        if weight is None:
            return self._plain(f"{linear}.weight", (out_features, in_features), self.dtype)
        self._claim(f"{linear}.weight")
        _check_shape(f"{linear}.weight", weight.shape, (out_features, in_features))
        _check_codes(linear, weight)
        return weight

    def input_encode_scale(self, linear: str) -> Tensor:
        """Calibrated global scale of an NVFP4 linear's input, float32 [1].

        Raises:
            ModelError: There is none.
        """
        scale = self._source.input_encode_scale(linear)
        if scale is None or scale.numel() != 1 or not 0 < scale.item() < math.inf:
            given = "none" if scale is None else scale.tolist()
            raise ModelError(
                f"global scale of the input of {linear}",
                expected=f"one finite number > 0, since its weight is {Precision.NVFP4}",
                given=given,
                fix="export the model again",
            )
        return scale.to(self.device, torch.float32).reshape(1)

    def kv_scales(self, attentions: Iterable[str]) -> tuple[tuple[float, float], ...] | None:
        """Decode scales (key, value) of all caches, or None where none of them is quantized.

        Args:
            attentions: Names of the attention modules in order.

        Raises:
            ModelError: Some have scales and some have none, or a scale is no positive number.
        """
        names = list(attentions)
        found = [self._source.kv_scales(name) for name in names]
        given = [scales for scales in found if scales is not None]
        if not given:
            return None
        if len(given) < len(found):
            lacking = names[found.index(None)]
            fix = "export the model with scales for all layers or for none"
            raise ModelError(lacking, expected="scales of its FP8 cache", given="none", fix=fix)
        for name, scales in zip(names, given, strict=True):
            if not all(0 < scale < math.inf for scale in scales):
                fix = "export the model again"
                raise ModelError(
                    f"scales of the cache of {name}", expected="numbers > 0", given=scales, fix=fix
                )
            for scale_name in KV_SCALE_NAMES:
                self._claim(f"{name}.{scale_name}")
        return tuple(given)

    def ignore(self, prefix: str, reason: str) -> None:
        """Leaves a tensor, or everything below a module, whether it is there or not.

        Args:
            prefix: Full name of a tensor, or of a module.
            reason: Why the model has no use for it.
        """
        for name in self._names:
            if name == prefix or name.startswith(f"{prefix}."):
                self._ignored[name] = reason

    def finish(self) -> None:
        """Refuses what nobody took.

        Raises:
            ModelError: The checkpoint has a tensor that the model neither takes nor ignores.
        """
        odd = sorted(self._names - self._taken - set(self._ignored))
        if odd:
            more = f" and {len(odd) - _MOST_NAMES} more" if len(odd) > _MOST_NAMES else ""
            given = ", ".join(odd[:_MOST_NAMES]) + more
            raise ModelError("unexpected tensors", expected="only those of the model", given=given, fix=_FIX)

    def _plain(self, name: str, shape: Iterable[int], dtype: torch.dtype) -> Tensor:
        linear = name.removesuffix(".weight")
        self._claim(name)
        if self._source.quantized(linear) is not None:
            raise ModelError(
                name, expected="an unquantized weight", given="a quantized one", fix="export the model again"
            )
        tensor = self._source.tensor(name)
        _check_shape(name, tensor.shape, shape)
        if not tensor.dtype.is_floating_point:
            raise ModelError(name, expected="a float tensor", given=tensor.dtype, fix=_FIX)
        found = tensor.to(self.device, dtype)
        # A sum is the fastest look at all of them: NaN and infinity stay what they are.
        total = found.sum(dtype=torch.float64 if dtype is torch.float64 else torch.float32)
        _check_values(name, bool(torch.isfinite(total)))
        return found

    def _claim(self, name: str) -> None:
        if name not in self._names:
            raise ModelError("missing tensor", expected=name, given="none", fix=_FIX)
        if name in self._taken or name in self._ignored:
            fix = "report this: a module is built twice"
            raise ModelError(name, expected="to be taken once", given="taken or ignored before", fix=fix)
        self._taken.add(name)


def _check_codes(linear: str, weight: QuantizedWeight) -> None:
    """Refuses a quantized weight with NaN, infinity, or a scale that no quantizer writes."""
    if isinstance(weight, FP8Weight):
        codes, scale = weight.codes.view(torch.uint8), weight.decode_scale
        is_sound = not bool(((codes & _E4M3_NAN) == _E4M3_NAN).any())
        is_sound &= bool(((scale >= 0) & (scale < math.inf)).all())
    else:
        is_sound = int(weight.block_scale.view(torch.uint8).max()) < _E4M3_NAN
        is_sound &= 0 < weight.encode_scale.item() < math.inf
    _check_values(f"{linear}.weight", is_sound)


def _check_values(name: str, is_sound: bool) -> None:
    if not is_sound:
        fix = "fetch or export the model again"
        raise WeightValueError(name, expected="finite numbers, and scales > 0", given="others", fix=fix)


def _check_shape(name: str, given: Iterable[int], expected: Iterable[int]) -> None:
    if list(given) != list(expected):
        raise ModelError(name, expected=f"shape {list(expected)}", given=list(given), fix=_FIX)
