"""``local_convolution`` in Triton."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ocrquant.kernels.triton_common.launch import launch, next_power

_MOST_COLUMNS = 1024


@triton.jit
def local_convolution_kernel(
    y,
    base,
    added,
    out,
    width,
    block,
    TAPS: tl.constexpr,
    SIDES: tl.constexpr,
    SIDE: tl.constexpr,
    GROUP: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Program (row, part of it)."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_inside = column < width
    behind = row % block  # rows of its block before it
    own = added + (row * SIDES + SIDE) * TAPS * (width // GROUP) + column // GROUP
    total = tl.zeros([COLUMNS], tl.float32)
    for tap in tl.static_range(TAPS):
        if tap <= behind:
            shared = tl.load(base + (SIDE * TAPS + tap) * width + column, mask=is_inside, other=0.0)
            chosen = tl.load(own + tap * (width // GROUP), mask=is_inside, other=0.0)
            value = tl.load(y + (row - tap) * width + column, mask=is_inside, other=0.0)
            total += (shared.to(tl.float32) + chosen.to(tl.float32)) * value.to(tl.float32)
    tl.store(out + row * width + column, total.to(tl.bfloat16), mask=is_inside)


def local_convolution_triton(
    y: Tensor, base: Tensor, added: Tensor, block: int, side: int, out: Tensor
) -> None:
    """See `local_convolution_reference`; bf16 on a GPU."""
    rows, width = y.shape
    sides, taps, groups = added.shape[1:]
    columns = min(next_power(width), _MOST_COLUMNS)
    launch(
        local_convolution_kernel,
        (rows, -(-width // columns)),
        *(y, base, added, out, width, block),
        num_warps=4,
        TAPS=taps,
        SIDES=sides,
        SIDE=side,
        GROUP=width // max(groups, 1),
        COLUMNS=columns,
    )
