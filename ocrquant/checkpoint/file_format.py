"""What a checkpoint format is: names, shapes and conventions of its tensors, and what its configuration says.

A format is one row, ``FileFormat``; writers and readers follow the row and know no format by name. Knows
nothing of where weights come from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from ocrquant.checkpoint.layout import TensorSpec
from ocrquant.checkpoint.patterns import LinearNames
from ocrquant.formats import Precision

__all__ = ["INPUT_SCALE_NAME", "KV_SCALE_NAMES", "Configuration", "FileFormat", "StoredPart"]

INPUT_SCALE_NAME = "input_global_scale"
"""NVFP4's calibrated global scale of the input, float32 [1]: a divisor, like that of the weight."""

KV_SCALE_NAMES = ("k_scale", "v_scale")
"""Decode scales of an FP8 cache on the attention module, as this package names them."""


def _same(tensor: Tensor) -> Tensor:
    return tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPart:
    """One tensor of a quantized linear.

    Attributes:
        name: Its name behind that of the linear.
        part: Which one it is: a name of ``formats.weights.TENSOR_NAMES``, or ``INPUT_SCALE_NAME``.
        dtype: safetensors name.
        shape: Its shape for a weight [out, in].
        write: From this package's form to the stored one.
        read: The way back.
    """

    name: str
    part: str
    dtype: str
    shape: Callable[[int, int], tuple[int, ...]]
    write: Callable[[Tensor], Tensor] = _same
    read: Callable[[Tensor], Tensor] = _same


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What a format says of a plan.

    Attributes:
        quantization_config: Value of that key in ``config.json``.
        files: Further JSON files by name; they say the same.
    """

    quantization_config: Mapping[str, Any]
    files: Mapping[str, Mapping[str, Any]]


class _Describe(Protocol):
    def __call__(self, names: LinearNames, *, kv_cache: bool) -> Configuration | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFormat:
    """One format.

    Attributes:
        name: What a recipe calls it.
        parts: For each precision the tensors of a linear, its codes first.
        kv_names: Names of the decode scales of an FP8 cache, key and value, behind that of the attention
            module.
        kv_shape: Shape of each; their dtype is float32.
        describe: Configuration of a plan; None where it quantizes neither a linear nor the cache.
        file_names: Files beside ``config.json`` that the format may have.
        check: Refuses a ``quantization_config`` with a scheme that this package does not compute, and files
            of those names that say something else.
        declared: Precision of a linear by a ``quantization_config``, and whether only a rule for all linears
            says so, which cannot tell a linear that was left alone from an embedding.
    """

    name: str
    parts: Mapping[Precision, tuple[StoredPart, ...]]
    kv_names: tuple[str, str]
    kv_shape: tuple[int, ...]
    describe: _Describe
    file_names: tuple[str, ...] = ()
    check: Callable[[Mapping[str, Any], Mapping[str, Mapping[str, Any]]], None]
    declared: Callable[[Mapping[str, Any], str], tuple[Precision | None, bool]]

    def specs(
        self, linear: str, precision: Precision, out_features: int, in_features: int
    ) -> list[TensorSpec]:
        """The tensors that a linear's weight becomes.

        Args:
            linear: Its name.
            precision: ``fp8`` or ``nvfp4``.
            out_features: Rows of the weight.
            in_features: Columns of the weight.
        """
        return [
            TensorSpec(f"{linear}.{part.name}", part.dtype, part.shape(out_features, in_features))
            for part in self.parts[precision]
        ]

    def kv_tensors(self, attention: str) -> tuple[str, str]:
        """Full names of the decode scales of an attention module's cache, key and value."""
        key, value = self.kv_names
        return f"{attention}.{key}", f"{attention}.{value}"
