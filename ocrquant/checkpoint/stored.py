"""A quantized folder read back: weights and scales by the names and in the form that this package uses.

Knows the formats of ``file_formats``, whoever wrote the folder. Does not compute with a weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from math import prod
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

from pydantic import ValidationError
from torch import Tensor

from ocrquant.artifacts import KvScales
from ocrquant.checkpoint.file_format import INPUT_SCALE_NAME, KV_SCALE_NAMES, FileFormat, StoredPart
from ocrquant.checkpoint.file_formats import file_format_of
from ocrquant.checkpoint.layout import TensorSpec
from ocrquant.checkpoint.reader import CheckpointReader
from ocrquant.errors import ModelError
from ocrquant.formats import Precision
from ocrquant.formats.weights import TENSOR_NAMES, QuantizedWeight, weight_from_tensors
from ocrquant.json_files import read_json

__all__ = ["StoredCheckpoint"]


class StoredCheckpoint:
    """A quantized checkpoint, read linear by linear; use as a context manager.

    Args:
        folder: Folder with a ``config.json`` and safetensors files.

    Attributes:
        config: What ``config.json`` holds.
        format: How its tensors are stored; the default one where nothing is quantized.
        linears: Precision of each quantized linear, by its name in the checkpoint.
        kv: Scales of the caches of full-attention layers; none for a bf16 cache.

    Raises:
        ModelError: A file is missing or damaged, a scheme is not one that this package computes, or a tensor
            that a scheme needs is missing.
    """

    def __init__(self, folder: Path) -> None:
        self.config = read_json(folder / "config.json")
        self.format: FileFormat = file_format_of(self.config)
        if (said := self._declaration) is not None:
            names = [name for name in self.format.file_names if (folder / name).is_file()]
            self.format.check(said, {name: read_json(folder / name) for name in names})
        self._reader = CheckpointReader(folder)
        try:
            self.linears = MappingProxyType(self._find_linears())
            if self.linears and said is None:
                first = next(iter(self.linears))
                raise _missing(folder, "a quantization_config", f"none, though {first} is quantized")
            self.kv = tuple(self._find_kv())
        except BaseException:
            self._reader.close()
            raise

    @property
    def specs(self) -> Mapping[str, TensorSpec]:
        """Every tensor of the folder by its full name, as it is stored."""
        return MappingProxyType(self._reader.specs)

    @cached_property
    def parts(self) -> Mapping[str, tuple[str, StoredPart]]:
        """Full name of each tensor of a quantized linear -> that linear, and which part it is."""
        return MappingProxyType(
            {
                f"{linear}.{part.name}": (linear, part)
                for linear, precision in self.linears.items()
                for part in self.format.parts[precision]
            }
        )

    @cached_property
    def names(self) -> frozenset[str]:
        """Every tensor as a model knows it.

        ``<linear>.weight`` for all parts of a quantized weight, ``KV_SCALE_NAMES`` on its attention module
        for the scales of a cache.
        """
        known = {f"{item.name}.{name}" for item in self.kv for name in KV_SCALE_NAMES}
        return frozenset(self._plain | known | {f"{linear}.weight" for linear in self.linears})

    @property
    def num_parameters(self) -> int:
        """Numbers that the stored weights stand for; scales are none."""
        plain = sum(self._reader.specs[name].num_elements for name in self._plain)
        return plain + sum(prod(self.shape(linear)) for linear in self.linears)

    def shape(self, linear: str) -> tuple[int, int]:
        """``(out, in)`` of a quantized linear's weight."""
        precision = self.linears[linear]
        codes = self._reader.specs[f"{linear}.{self.format.parts[precision][0].name}"]
        if len(codes.shape) != 2:
            raise _missing(self._reader.folder, f"a matrix {codes.name}", list(codes.shape))
        rows, columns = codes.shape
        return rows, columns * (2 if precision is Precision.NVFP4 else 1)

    def weight(self, linear: str) -> QuantizedWeight:
        """A linear's weight.

        Raises:
            ShapeError: A part of it has another dtype or shape than its scheme asks for.
        """
        precision = self.linears[linear]
        return weight_from_tensors(precision, {p: self.part(linear, p) for p in TENSOR_NAMES[precision]})

    def part(self, linear: str, name: str) -> Tensor:
        """One tensor of a quantized linear in this package's form.

        Args:
            linear: Its name.
            name: Which: a name of ``formats.weights.TENSOR_NAMES``, or ``INPUT_SCALE_NAME``.
        """
        part = next(p for p in self.format.parts[self.linears[linear]] if p.part == name)
        stored = f"{linear}.{part.name}"
        # A global scale that several values claim to be is a fault of the file, not of its reader.
        tensor = self._number(stored) if name in _NUMBERS else self._reader.read(stored)
        # Other programs store scales of FP8 channels in the dtype of the model.
        return part.read(tensor.float() if part.dtype == "F32" else tensor)

    def input_encode_scale(self, linear: str) -> Tensor | None:
        """Calibrated global scale of an NVFP4 linear's input, float32 [1]; None for FP8."""
        if self.linears[linear] is Precision.FP8:
            return None
        return self.part(linear, INPUT_SCALE_NAME).float().reshape(1)

    def tensor(self, name: str) -> Tensor:
        """Any tensor by its full name as it is stored, on the CPU.

        Raises:
            ModelError: There is none of that name.
        """
        return self._reader.read(name)

    def close(self) -> None:
        """Gives the files back; tensors already read stay valid."""
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _declaration(self) -> dict[str, Any] | None:
        found = self.config.get("quantization_config")
        return found if isinstance(found, dict) else None

    @cached_property
    def _plain(self) -> frozenset[str]:
        """Tensors that are neither part of a quantized linear nor a scale of a cache."""
        scales = {name for item in self.kv for name in self.format.kv_tensors(item.name)}
        return frozenset(self._reader.specs.keys() - self.parts.keys() - scales)

    def _find_linears(self) -> dict[str, Precision]:
        codes = {(p[0].name, p[0].dtype): precision for precision, p in self.format.parts.items()}
        found = {}
        for name, spec in self._reader.specs.items():
            linear, _, suffix = name.rpartition(".")
            precision = codes.get((suffix, spec.dtype))
            if precision is None:
                continue
            found[linear] = precision
            for part in self.format.parts[precision]:
                if f"{linear}.{part.name}" not in self._reader.specs:
                    raise _missing(self._reader.folder, f"a tensor {linear}.{part.name}", "none")
        return found

    def _find_kv(self) -> list[KvScales]:
        key_name = self.format.kv_names[0]
        suffix = f".{key_name}"
        names = sorted(name.removesuffix(suffix) for name in self._reader.specs if name.endswith(suffix))
        return [
            self._kv_scales(name, *(self._number(full).item() for full in self.format.kv_tensors(name)))
            for name in names
        ]

    def _kv_scales(self, name: str, key: float, value: float) -> KvScales:
        try:
            return KvScales(name=name, k_decode_scale=key, v_decode_scale=value)
        except ValidationError as error:
            raise _missing(self._reader.folder, f"finite cache scales > 0 of {name}", (key, value)) from error

    def _number(self, name: str) -> Tensor:
        tensor = self._reader.read(name)
        if tensor.numel() != 1:
            raise _missing(self._reader.folder, f"one number {name}", list(tensor.shape))
        return tensor


_NUMBERS = frozenset({"weight_global_scale", INPUT_SCALE_NAME})


def _missing(place: Path, expected: str, given: object) -> ModelError:
    return ModelError(place, expected=expected, given=given, fix="export the model again")
