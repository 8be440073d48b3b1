"""The table of precisions: bits, block, largest element, what a width must divide by, bytes on disk.

The one place where the numbers of a format are written down (448, 6, 16, 4.5). Imports no torch, so a recipe
or a plan can be read without it.

Sources: OCP "8-bit Floating Point Specification" (E4M3), OCP "Microscaling Formats" v1.0 (E2M1), NVIDIA's
NVFP4 description (E2M1 in blocks of 16 with E4M3 block scales and one FP32 scale a tensor).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Literal

from ocrquant.errors import ShapeError

__all__ = [
    "E2M1_MAX",
    "E4M3_MAX",
    "E4M3_SMALLEST",
    "FORMATS",
    "NVFP4_BLOCK_SIZE",
    "SMALLEST_DECODE_SCALE",
    "Format",
    "Precision",
]

E4M3_MAX = 448.0
E4M3_SMALLEST = 2.0**-9
"""Smallest positive E4M3 number, a subnormal."""
E2M1_MAX = 6.0
NVFP4_BLOCK_SIZE = 16

SMALLEST_DECODE_SCALE = 2.0**-112
"""Below this a tensor counts as all zero and its FP32 scale becomes 1.

At this size the smallest product of scales and half grid steps (2**-112 * 2**-9 * 2**-2) is still a normal
float32, so hardware that flushes subnormals decodes the same numbers as the CPU does.
"""

_FP32_BYTES = 4


class Precision(StrEnum):
    """The precision of one linear layer."""

    BF16 = "bf16"
    FP8 = "fp8"
    NVFP4 = "nvfp4"


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """What one precision costs and demands.

    Attributes:
        precision: Which precision this row describes.
        element_bits: Bits of one stored element, scales left out.
        block_size: Consecutive input elements that share a block scale; None where there are no blocks.
        element_max: Largest magnitude of one element before scaling; infinite where nothing is scaled.
        bits_per_weight: Nominal cost, block scales included, per-tensor and per-channel scales left out.
    """

    precision: Precision
    element_bits: int
    block_size: int | None
    element_max: float
    bits_per_weight: float

    @property
    def width_multiple(self) -> int:
        """What the input width of a layer must divide by."""
        return self.block_size or 1

    def fits(self, in_features: int) -> bool:
        """Whether a layer of this input width can be stored."""
        return in_features > 0 and in_features % self.width_multiple == 0

    def weight_bytes(
        self, out_features: int, in_features: int, *, per: Literal["tensor", "channel"] = "channel"
    ) -> int:
        """Exact bytes on disk of one weight: elements, block scales and FP32 scales.

        Args:
            out_features: Rows of the weight.
            in_features: Columns of the weight.
            per: For FP8, whether the FP32 decode scale is one for the tensor or one for each output channel.
                The other precisions have no such choice and ignore it.

        Raises:
            ShapeError: The width does not divide by ``width_multiple``.
        """
        if not self.fits(in_features):
            raise ShapeError(
                f"weight [{out_features}, {in_features}] in {self.precision}",
                expected=f"a positive input width that is a multiple of {self.width_multiple}",
                given=in_features,
                fix="keep this layer in a precision that fits its width",
            )
        elements = out_features * in_features
        blocks = elements // self.block_size if self.block_size else 0
        fp32_scales = {
            Precision.BF16: 0,
            Precision.FP8: out_features if per == "channel" else 1,
            Precision.NVFP4: 1,
        }[self.precision]
        return elements * self.element_bits // 8 + blocks + _FP32_BYTES * fp32_scales


FORMATS: Mapping[Precision, Format] = MappingProxyType(
    {
        row.precision: row
        for row in (
            Format(
                precision=Precision.BF16,
                element_bits=16,
                block_size=None,
                element_max=float("inf"),
                bits_per_weight=16.0,
            ),
            Format(
                precision=Precision.FP8,
                element_bits=8,
                block_size=None,
                element_max=E4M3_MAX,
                bits_per_weight=8.0,
            ),
            Format(
                precision=Precision.NVFP4,
                element_bits=4,
                block_size=NVFP4_BLOCK_SIZE,
                element_max=E2M1_MAX,
                bits_per_weight=4.5,
            ),
        )
    }
)
"""Every precision, cheapest last."""
