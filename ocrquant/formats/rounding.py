"""Rounding to a small floating-point grid, and the walk over large tensors in pieces that stay in cache.

Knows mantissas and exponents; knows no scale and no block. ``fp8`` and ``nvfp4`` are built on it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ocrquant.errors import ShapeError, WeightValueError
from ocrquant.formats.precision import E2M1_MAX, E4M3_MAX

__all__ = [
    "E2M1",
    "E4M3",
    "Grid",
    "binade",
    "map_rows",
    "require_finite",
    "round_to_grid_",
    "snap_",
    "tensor_amax",
]

_FLOAT32_EXPONENT = 0x7F800000
_FLOAT32_MANTISSA_BITS = 23

# Elements a piece: its float32 temporaries stay in the second-level cache of a server core. NVFP4 activations
# of 4 Mi elements on one busy core of a Xeon at 2.1 GHz with 2 MiB of that cache, ns an element: pieces of
# 16 Ki 11.5, 32 Ki 7.0, 128 Ki 6.8, 512 Ki 8.9, not cut at all 12.4 (medians of 12, 2026-11-30).
_CPU_PIECE = 1 << 17
# On a GPU pieces only bound the memory of the temporaries: 256 MiB each.
_CUDA_PIECE = 1 << 26


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A signed floating-point grid with subnormals and without infinities.

    Attributes:
        mantissa_bits: Stored mantissa bits.
        smallest_normal: Smallest normal magnitude, a power of two; below it the steps stay equal.
        largest_power: Largest power of two on the grid.
        largest: Largest magnitude; what lies beyond saturates to it.
    """

    mantissa_bits: int
    smallest_normal: float
    largest_power: float
    largest: float

    @property
    def snap(self) -> float:
        """1.5 * 2**23 grid steps, in units of the binade that the steps belong to."""
        return 1.5 * 2.0 ** (_FLOAT32_MANTISSA_BITS - self.mantissa_bits)


E4M3 = Grid(mantissa_bits=3, smallest_normal=2.0**-6, largest_power=256.0, largest=E4M3_MAX)
E2M1 = Grid(mantissa_bits=1, smallest_normal=1.0, largest_power=4.0, largest=E2M1_MAX)


def round_to_grid_(values: Tensor, grid: Grid) -> Tensor:
    """Rounds to nearest, ties to the even code, and saturates; in place.

    Adding and subtracting 1.5 * 2**23 grid steps makes the float32 adder itself round to a multiple of the
    step, ties to the even multiple; the step follows from the exponent bits alone. Multiples and codes have
    the same parity on these grids, so this is the rounding of the hardware conversions. A value that rounds
    to zero becomes +0 whatever its sign; NaN stays NaN; an infinity saturates.

    128 Ki elements on one busy core of a Xeon at 2.1 GHz take 1.9 ns each, a conversion to float8_e4m3fn and
    back 6.1 ns, ``torch.bucketize`` over the seven E2M1 midpoints 16 ns (best of 41, 2026-11-30).

    Args:
        values: float32, any shape, contiguous; overwritten.
        grid: The grid.

    Returns:
        ``values``.
    """
    power = binade(values, grid)
    return snap_(values, grid, power).sub_(power, alpha=grid.snap).clamp_(-grid.largest, grid.largest)


def binade(values: Tensor, grid: Grid) -> Tensor:
    """Largest power of two not above each magnitude, within the normal range of the grid."""
    power = torch.bitwise_and(values.view(torch.int32), _FLOAT32_EXPONENT).view(torch.float32)
    return power.clamp_(grid.smallest_normal, grid.largest_power)


def snap_(values: Tensor, grid: Grid, power: Tensor) -> Tensor:
    """Adds 1.5 * 2**23 steps of the binade ``power``; the low bits then hold the rounded count of steps."""
    return values.add_(power, alpha=grid.snap)


def map_rows(
    function: Callable[[Tensor, Tensor], Tensor], rows: Tensor, scales: Tensor, dtype: torch.dtype
) -> Tensor:
    """Applies ``function`` to pieces of ``rows`` small enough for the cache (CPU) or for memory (CUDA).

    Args:
        function: Takes float32 or integer rows [r, width] and their scales [r, 1] or [1, 1]; returns
            [r, width] or [r, 1]. It may not write into its arguments.
        rows: [n, width], contiguous.
        scales: [n, 1], or [1, 1] for all.
        dtype: Dtype of the result.

    Returns:
        What ``function`` returns for all rows, in ``dtype``.
    """
    step = max(1, (_CUDA_PIECE if rows.is_cuda else _CPU_PIECE) // max(1, rows.shape[1]))
    if len(rows) <= step:
        return function(rows, scales).to(dtype)
    result: Tensor | None = None
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        piece = function(rows[part], scales if len(scales) == 1 else scales[part])
        if result is None:
            result = torch.empty(len(rows), piece.shape[1], dtype=dtype, device=rows.device)
        result[part] = piece
    assert result is not None
    return result


def tensor_amax(*tensors: Tensor) -> Tensor:
    """Largest magnitude over all the tensors given, as float32 [1]; NaN if any element is NaN.

    Several tensors give the amax that layers served as one fused layer (q/k/v, gate/up) must share.

    Raises:
        ShapeError: No tensor, or only empty ones.
    """
    extremes = [torch.stack(torch.aminmax(tensor.detach())) for tensor in tensors if tensor.numel()]
    if not extremes:
        raise ShapeError("largest magnitude", expected="at least one element", given="none")
    device = extremes[0].device
    return torch.cat([pair.to(device, torch.float32) for pair in extremes]).abs().amax().reshape(1)


def require_finite(name: str, tensor: Tensor) -> None:
    """Refuses a tensor with NaN or Inf, naming it and counting them.

    One pass without a temporary of the tensor's size; only a refusal counts in detail.

    Raises:
        WeightValueError: Some element is NaN or infinite.
    """
    if tensor.numel() == 0 or bool(torch.isfinite(tensor_amax(tensor))):
        return
    num_nan = int(torch.isnan(tensor).sum())
    num_inf = int(torch.isinf(tensor).sum())
    raise WeightValueError(
        name,
        expected="finite values",
        given=f"{num_nan} NaN and {num_inf} Inf among {tensor.numel()} of shape {list(tensor.shape)}",
        fix="repair or re-download this weight",
    )
