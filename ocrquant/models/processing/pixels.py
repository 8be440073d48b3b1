"""8-bit patches of a batch to the values that a vision tower reads, in one lookup for all images.

Knows levels of pixels and the order within a patch. Knows no grids.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ocrquant.kernels.pixel_values import pixel_values
from ocrquant.models.processing.images import CHANNELS, ImageSpec

__all__ = ["PixelTable"]


class PixelTable:
    """Looks pixels up.

    Args:
        spec: What happens to an image.
        dtype: Of the values: the single precision of the image processor, rounded once.
        device: Where they are wanted.
    """

    def __init__(self, spec: ImageSpec, dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
        self.spec = spec
        self.device = torch.device(device)
        self.levels = torch.from_numpy(spec.levels()).to(dtype).to(self.device)

    def pack(self, patches: Sequence[npt.NDArray[np.uint8]]) -> Tensor:
        """Patches of all images, one after another.

        Args:
            patches: For each image uint8 [patches, channels * patch_size ** 2].

        Returns:
            [patches of all images, channels * temporal_patch_size * patch_size ** 2].
        """
        joined = patches[0] if len(patches) == 1 else np.concatenate(patches)
        codes = torch.from_numpy(joined).to(self.device).view(-1, CHANNELS, self.spec.patch_size**2)
        frames = self.spec.temporal_patch_size
        values = self.levels.new_empty((codes.shape[0], CHANNELS, frames, codes.shape[2]))
        pixel_values(codes, self.levels, values)
        return values.flatten(1)
