"""Rotary positions of several axes (M-RoPE): which frequency turns with which axis, and one table a step.

Knows the two layouts: Qwen3.5 deals the axes out in turn, PaddleOCR-VL gives each a section. Does not know
heads; the table is the same for all layers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ocrquant.errors import ModelError
from ocrquant.kernels.rope_table import rope_table
from ocrquant.models.workspace import Scratch, Workspace

__all__ = ["Rotary", "contiguous_axes", "interleaved_axes", "inverse_frequencies"]


def inverse_frequencies(theta: float, width: int) -> Tensor:
    """float32 [width / 2]: ``theta ** (-2 j / width)``, computed as ``transformers`` computes it."""
    return 1.0 / (theta ** (torch.arange(0, width, 2, dtype=torch.float32) / width))


def interleaved_axes(sections: Sequence[int]) -> Tensor:
    """int32: time, height, width, time, ... while the sections of height and width last; then time.

    Args:
        sections: How many frequencies each axis has.
    """
    axes = torch.zeros(sum(sections), dtype=torch.int32)
    for axis in range(1, len(sections)):
        axes[axis : sections[axis] * len(sections) : len(sections)] = axis
    return axes


def contiguous_axes(sections: Sequence[int]) -> Tensor:
    """int32: all of time, then all of height, then all of width.

    Args:
        sections: How many frequencies each axis has.
    """
    return torch.repeat_interleave(torch.arange(len(sections), dtype=torch.int32), torch.tensor(sections))


class Rotary:
    """The table of cosines and sines of a step.

    Args:
        workspace: Where the table lies.
        inv_freq: float32 [d / 2].
        axes: int32 [d / 2], the axis of each frequency.

    Raises:
        ModelError: There is not one axis for each frequency.
    """

    def __init__(self, workspace: Workspace, inv_freq: Tensor, axes: Tensor) -> None:
        if inv_freq.shape != axes.shape:
            raise ModelError(
                "rope_parameters.mrope_section in config.json",
                expected=f"sections of {len(inv_freq)} frequencies in all",
                given=len(axes),
                fix="take another model, or mend the file",
            )
        self.inv_freq = inv_freq.to(workspace.device)
        self.axes = axes.to(workspace.device)
        # float32 also for wider activations: the model's own definition takes these angles in float32.
        self.cos = workspace.slot("rope.cos", len(inv_freq), torch.float32)
        self.sin = workspace.slot("rope.sin", len(inv_freq), torch.float32)
        self._dtype = workspace.dtype

    def __call__(self, positions: Tensor, scratch: Scratch) -> None:
        """Fills the table.

        Args:
            positions: int32 [axes, R].
            scratch: Where to.
        """
        cos, sin = scratch.rows(self.cos), scratch.rows(self.sin)
        rope_table(positions, self.inv_freq, self.axes, cos, sin, self._dtype)
