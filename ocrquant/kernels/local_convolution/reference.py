"""Plain torch definition of ``local_convolution``."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from ocrquant.kernels.emit import wide


def local_convolution_reference(
    y: Tensor, base: Tensor, added: Tensor, block: int, side: int, out: Tensor
) -> None:
    """Convolves each row with those before it in its block, by kernels that the row itself chose (DFlash2).

    ``out[i, c] = sum over t of (base[side, t, c] + added[i, side, t, c // group]) * y[i - t, c]``, where rows
    before the block are zeros: in float32, one rounding.

    Args:
        y: A[R, w], blocks one after another.
        base: A[sides, taps, w].
        added: A[R, sides, taps, w / group].
        block: Rows of a block; divides R.
        side: Which of the sides of a sublayer.
        out: A[R, w], other memory than `y`; overwritten.
    """
    rows = wide(y).unflatten(0, (-1, block))
    group = y.shape[1] // added.shape[3]
    kernels = wide(base[side]) + wide(added[:, side]).repeat_interleave(group, -1)  # [R, taps, w]
    taps = kernels.unflatten(0, (-1, block)).unbind(2)
    total = taps[0] * rows
    for back, tap in enumerate(taps[1:block], 1):
        total = total + tap * F.pad(rows[:, :-back], (0, 0, back, 0))
    out.copy_(total.flatten(0, 1))
