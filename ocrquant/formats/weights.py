"""Quantized weights as values: what rounding makes, a checkpoint stores and a simulation computes with.

Two kinds, ``FP8Weight`` and ``NVFP4Weight``, that answer the same questions: precision, shape, bytes, and the
weight that a reader computes with. ``weight_tensors`` and ``weight_from_tensors`` name their parts as
compressed-tensors does. Knows nothing of layers and files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import torch
from torch import Tensor

from ocrquant.errors import ShapeError
from ocrquant.formats import fp8
from ocrquant.formats.nvfp4 import NVFP4Weight
from ocrquant.formats.precision import NVFP4_BLOCK_SIZE, Precision

__all__ = [
    "TENSOR_NAMES",
    "FP8Weight",
    "NVFP4Weight",
    "QuantizedWeight",
    "scale_columns",
    "weight_from_tensors",
    "weight_tensors",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class FP8Weight:
    """A weight [out, in] in E4M3 with one scale for each output channel.

    Attributes:
        codes: float8_e4m3fn [out, in].
        decode_scale: float32 [out, 1], finite and > 0: decoding multiplies by it.
    """

    precision: ClassVar[Precision] = Precision.FP8

    codes: Tensor
    decode_scale: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """``(out, in)``."""
        return self.codes.shape[0], self.codes.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes on disk, all scales included."""
        return self.codes.nbytes + self.decode_scale.nbytes

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The weight [out, in]: product in float32, then rounded to ``dtype``."""
        return fp8.decode(self.codes, self.decode_scale, dtype)


QuantizedWeight: TypeAlias = FP8Weight | NVFP4Weight

TENSOR_NAMES: Mapping[Precision, Mapping[str, str]] = {
    Precision.FP8: {"weight": "codes", "weight_scale": "decode_scale"},
    Precision.NVFP4: {
        "weight_packed": "packed",
        "weight_scale": "block_scale",
        "weight_global_scale": "encode_scale",
    },
}
"""For each precision, the compressed-tensors name of each part and the attribute that holds it."""

_DTYPES: Mapping[Precision, Mapping[str, torch.dtype]] = {
    Precision.FP8: {"weight": torch.float8_e4m3fn, "weight_scale": torch.float32},
    Precision.NVFP4: {
        "weight_packed": torch.uint8,
        "weight_scale": torch.float8_e4m3fn,
        "weight_global_scale": torch.float32,
    },
}


def weight_tensors(weight: QuantizedWeight) -> dict[str, Tensor]:
    """The parts of a weight under their compressed-tensors names, such as ``weight_packed``."""
    return {name: getattr(weight, part) for name, part in TENSOR_NAMES[weight.precision].items()}


def weight_from_tensors(precision: Precision, tensors: Mapping[str, Tensor]) -> QuantizedWeight:
    """A weight from its parts; the inverse of ``weight_tensors``.

    Args:
        precision: ``fp8`` or ``nvfp4``.
        tensors: The parts by their compressed-tensors names; other names are left alone. FP8 scales in bf16,
            as other programs write them, become float32.

    Raises:
        ShapeError: A part is missing, or its dtype or shape is not the one of this precision.
    """
    names = TENSOR_NAMES[precision]
    if missing := [name for name in names if name not in tensors]:
        raise ShapeError(
            f"{precision} weight", expected=" and ".join(names), given=f"no {missing[0]}", fix="name another"
        )
    parts = {name: tensors[name] for name in names}
    if precision is Precision.FP8 and parts["weight_scale"].dtype == torch.bfloat16:
        parts["weight_scale"] = parts["weight_scale"].float()
    for name, shape in _shapes(precision, parts).items():
        given, dtype = parts[name], _DTYPES[precision][name]
        if list(given.shape) != shape or given.dtype != dtype:
            raise ShapeError(
                f"{name} of a {precision} weight",
                expected=f"{dtype} {shape}",
                given=f"{given.dtype} {list(given.shape)}",
                fix="name a checkpoint of this scheme",
            )
    if precision is Precision.FP8:
        return FP8Weight(codes=parts["weight"], decode_scale=parts["weight_scale"])
    return NVFP4Weight(
        packed=parts["weight_packed"],
        block_scale=parts["weight_scale"],
        encode_scale=parts["weight_global_scale"],
    )


@torch.no_grad()
def scale_columns(weight: Tensor, smoothing: Tensor) -> Tensor:
    """Folds a smoothing vector into a weight that reads smoothed channels: column c times ``smoothing[c]``.

    Args:
        weight: [out, in], any float dtype, not quantized yet.
        smoothing: float32 [in], finite and > 0: what the preceding norm's output was divided by.

    Returns:
        [out, in] in the dtype of ``weight``, multiplied in float32 and rounded once. Pass a float32 weight
        where a quantizer reads the result.

    Raises:
        ShapeError: The vector does not have one entry a column.
    """
    if smoothing.shape != weight.shape[-1:]:
        raise ShapeError(
            f"smoothing vector for a weight of shape {list(weight.shape)}",
            expected=[weight.shape[-1]],
            given=list(smoothing.shape),
            fix="take the vector of the norm that this linear reads",
        )
    return (weight.float() * smoothing.float()).to(weight.dtype)


def _shapes(precision: Precision, parts: Mapping[str, Tensor]) -> dict[str, list[int]]:
    """Shapes that the parts must have, given the first one's."""
    if precision is Precision.FP8:
        rows, width = _matrix(parts["weight"])
        return {"weight": [rows, width], "weight_scale": [rows, 1]}
    rows, half = _matrix(parts["weight_packed"])
    blocks = 2 * half // NVFP4_BLOCK_SIZE
    return {
        "weight_packed": [rows, blocks * NVFP4_BLOCK_SIZE // 2],
        "weight_scale": [rows, blocks],
        "weight_global_scale": [1],
    }


def _matrix(tensor: Tensor) -> tuple[int, int]:
    if tensor.ndim != 2:
        fix = "name a checkpoint of linears"
        raise ShapeError("quantized weight", expected="a matrix", given=list(tensor.shape), fix=fix)
    return tensor.shape[0], tensor.shape[1]
