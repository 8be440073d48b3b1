"""Random weights of the size that trained ones have, and the same in the formats of checkpoints."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ocrquant.formats import Precision, fp8, nvfp4
from ocrquant.formats.weights import FP8Weight, QuantizedWeight

__all__ = ["INPUT_AMAX", "quantize_weight", "random_weight"]

STANDARD_DEVIATION = 0.02
INPUT_AMAX = 6.0
"""What a calibration might say of the largest magnitude in rows of normal numbers."""

_CHUNK = 1 << 24


def random_weight(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """bf16, normal numbers; made in parts, so that no float32 copy of a large weight is ever held."""
    weight = torch.empty(tuple(shape), dtype=torch.bfloat16, device=generator.device)
    for part in weight.view(-1).split(_CHUNK):
        drawn = torch.randn(len(part), generator=generator, device=generator.device)
        part.copy_(drawn.mul_(STANDARD_DEVIATION))
    return weight


def quantize_weight(weight: Tensor, precision: Precision) -> QuantizedWeight:
    """A bf16 weight [out, in] rounded to nearest: scales by channel (FP8), or by block and tensor (NVFP4)."""
    if precision is Precision.NVFP4:
        return nvfp4.quantize(weight)
    scale = fp8.weight_decode_scale(weight, "channel")
    return FP8Weight(codes=fp8.encode(weight, scale), decode_scale=scale)
