"""A vision tower as a model sees it: pixels and grids in, embeddings of image tokens out.

Knows both families by the parts that `qwen3_5` and `paddleocr_vl` build. All images of a call go through
every op together, whatever their sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ocrquant.errors import ShapeError
from ocrquant.models.grids import Grid
from ocrquant.models.spec import VisionSpec
from ocrquant.models.vision.encoder import Encoder, Merger, Norm
from ocrquant.models.vision.tables import GridTables

__all__ = ["VisionTower"]


@dataclass(frozen=True, slots=True)
class VisionTower:
    """Encodes images.

    Attributes:
        spec: How an image becomes tokens.
        encoder: Patches to features.
        last_norm: Of the features; None: none.
        merger: Features to tokens.
        tables: Positions by grid size.
    """

    spec: VisionSpec
    encoder: Encoder
    last_norm: Norm | None
    merger: Merger
    tables: GridTables

    @property
    def num_bytes(self) -> int:
        """Bytes of its weights, as they lie in memory; without the tables of grid sizes."""
        last = self.last_norm.num_bytes if self.last_norm is not None else 0
        return self.encoder.num_bytes + last + self.merger.num_bytes + self.tables.learned.nbytes

    def encode(self, pixels: Tensor, grids: Sequence[Grid]) -> Tensor:
        """Embeddings of all images, packed.

        Args:
            pixels: [patches of all images, values of a patch] in the dtype of activations.
            grids: For each image frames, rows and columns of patches.

        Returns:
            [tokens of all images, width of the decoder].

        Raises:
            ShapeError: Pixels and grids do not agree, or blocks of one token do not tile a grid.
        """
        tables = self.tables.batch(grids)
        expected = (tables.cos.shape[0], self.encoder.patch_embedding.in_features)
        if tuple(pixels.shape) != expected:
            fix = "take grid and patches from the model's own processor"
            raise ShapeError("pixels", expected=expected, given=tuple(pixels.shape), fix=fix)
        features = self.encoder(pixels, tables)
        if self.last_norm is not None:
            self.last_norm(features, features)
        return self.merger(features, tables.order)
