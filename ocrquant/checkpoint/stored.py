"""A compressed-tensors folder read back: quantized weights and scales by the name of their linear.

Knows the tensors of the schemes that this package writes, whoever wrote them. Does not compute with them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

from pydantic import ValidationError
from torch import Tensor

from ocrquant.artifacts import KvScales
from ocrquant.checkpoint.layout import TensorSpec
from ocrquant.checkpoint.reader import CheckpointReader
from ocrquant.checkpoint.scheme import INPUT_SCALE_NAME, KV_SCALE_NAMES, check_schemes
from ocrquant.errors import ModelError
from ocrquant.formats import Precision
from ocrquant.formats.weights import TENSOR_NAMES, QuantizedWeight, weight_from_tensors

__all__ = ["StoredCheckpoint"]


class StoredCheckpoint:
    """A quantized checkpoint, read linear by linear; use as a context manager.

    Args:
        folder: Folder with a ``config.json`` and safetensors files.

    Attributes:
        linears: Precision of each quantized linear, by its name in the checkpoint.
        kv: Scales of the caches of full-attention layers; none for a bf16 cache.

    Raises:
        ModelError: A file is missing or damaged, a scheme is not one that this package computes, or a tensor
            that a scheme needs is missing.
    """

    def __init__(self, folder: Path) -> None:
        config = _quantization_config(folder)
        if config is not None:
            check_schemes(config)
        self._reader = CheckpointReader(folder)
        try:
            self.linears = MappingProxyType(self._find_linears())
            if self.linears and config is None:
                first = next(iter(self.linears))
                raise _missing(folder, "a quantization_config", f"none, though {first} is quantized")
            self.kv = tuple(self._find_kv())
        except BaseException:
            self._reader.close()
            raise

    @property
    def specs(self) -> Mapping[str, TensorSpec]:
        """Every tensor of the folder by its full name."""
        return MappingProxyType(self._reader.specs)

    def weight(self, linear: str) -> QuantizedWeight:
        """A linear's weight as stored.

        Raises:
            ShapeError: A part of it has another dtype or shape than its scheme asks for.
        """
        precision = self.linears[linear]
        names = TENSOR_NAMES[precision]
        return weight_from_tensors(precision, {name: self._reader.read(f"{linear}.{name}") for name in names})

    def input_encode_scale(self, linear: str) -> Tensor | None:
        """Calibrated global scale of an NVFP4 linear's input, float32 [1]; None for FP8."""
        if self.linears[linear] is Precision.FP8:
            return None
        return self._number(f"{linear}.{INPUT_SCALE_NAME}").float().reshape(1)

    def tensor(self, name: str) -> Tensor:
        """Any tensor by its full name, on the CPU.

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

    def _find_linears(self) -> dict[str, Precision]:
        found = {}
        for name, spec in self._reader.specs.items():
            linear, _, part = name.rpartition(".")
            if part == "weight_packed":
                found[linear] = Precision.NVFP4
                needed = [*TENSOR_NAMES[Precision.NVFP4], INPUT_SCALE_NAME]
            elif part == "weight" and spec.dtype == "F8_E4M3":
                found[linear] = Precision.FP8
                needed = [*TENSOR_NAMES[Precision.FP8]]
            else:
                continue
            for other in needed:
                if f"{linear}.{other}" not in self._reader.specs:
                    raise _missing(self._reader.folder, f"a tensor {linear}.{other}", "none")
        return found

    def _find_kv(self) -> list[KvScales]:
        key_name = KV_SCALE_NAMES[0]
        names = sorted(
            name.removesuffix(f".{key_name}") for name in self._reader.specs if name.endswith(f".{key_name}")
        )
        return [
            self._kv_scales(name, *(self._number(f"{name}.{part}").item() for part in KV_SCALE_NAMES))
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


def _quantization_config(folder: Path) -> dict[str, Any] | None:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise _missing(path, "a JSON file", error) from error
    found = config.get("quantization_config") if isinstance(config, dict) else None
    return found if isinstance(found, dict) else None


def _missing(place: Path, expected: str, given: object) -> ModelError:
    return ModelError(place, expected=expected, given=given, fix="export the model again")
