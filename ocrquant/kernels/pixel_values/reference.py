"""Values of 8-bit pixels in plain torch; knows channels and frames, no image."""

from __future__ import annotations

from torch import Tensor


def pixel_values_reference(codes: Tensor, levels: Tensor, out: Tensor) -> None:
    """``out[r, c, f, p] = levels[c, codes[r, c, p]]`` for every frame f. Nothing is rounded.

    Args:
        codes: uint8 [R, c, p], the pixels of a patch by channel.
        levels: A[c, 256], what each value of a pixel stands for.
        out: A[R, c, f, p], overwritten.
    """
    rows, channels, frames, pixels = out.shape
    for channel in range(channels):
        found = levels[channel].index_select(0, codes[:, channel].reshape(-1).int())
        out[:, channel] = found.view(rows, 1, pixels).expand(rows, frames, pixels)
