"""Local dynamic convolutions of DFlash2: order within a block, put back around each sublayer.

Source: the published DFlash2 drafters (inco.ai/blog/dflash2, 2026-08-18; vLLM ``qwen3_dflash2.py``).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["LocalConvolution"]

BEFORE, AFTER = 0, 1
"""Sides of a sublayer."""


class LocalConvolution(nn.Module):
    """Convolves the tokens of a block before and after a sublayer, with kernels that each token chooses.

    A fresh one changes nothing: the first tap of the base is one, all else is zero.

    Args:
        hidden: Channels.
        taps: Tokens that a kernel covers: its own one and those before it.
        group: Channels that share what a token adds to the base.
    """

    def __init__(self, hidden: int, taps: int, group: int) -> None:
        super().__init__()
        self.taps, self.group = taps, group
        base = torch.zeros(2, taps, hidden)
        base[:, 0] = 1.0
        self.base_kernel = nn.Parameter(base)
        self.kernel_projection = nn.Linear(hidden, 2 * taps * (hidden // group), bias=False)
        nn.init.zeros_(self.kernel_projection.weight)

    def kernels(self, z: Tensor) -> Tensor:
        """[..., N, 2, taps, hidden], what each token convolves with on both sides.

        Args:
            z: [..., N, hidden], the normed input of the sublayer.
        """
        added = self.kernel_projection(z).unflatten(-1, (2, self.taps, -1))
        kernels: Tensor = self.base_kernel + added.repeat_interleave(self.group, -1)
        return kernels

    def convolve(self, y: Tensor, kernels: Tensor, side: int) -> Tensor:
        """[..., N, hidden]: each token with those before it in its block; before the first one are zeros.

        Args:
            y: [..., N, hidden], blocks of N tokens.
            kernels: Of `kernels`.
            side: `BEFORE` or `AFTER` the sublayer.
        """
        kernel = kernels[..., side, :, :]
        out = kernel[..., 0, :] * y
        for back in range(1, self.taps):
            shifted = nn.functional.pad(y[..., :-back, :], (0, 0, back, 0))
            out = out + kernel[..., back, :] * shifted
        return out
