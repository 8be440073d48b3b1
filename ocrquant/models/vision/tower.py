"""A vision tower as a model sees it: pixels and grids in, embeddings of image tokens out.

Knows both families by the parts that `qwen3_5` and `paddleocr_vl` build. All images of a call go through
every op together, whatever their sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from ocrquant.errors import ShapeError
from ocrquant.models.grids import Grid
from ocrquant.models.spec import VisionSpec
from ocrquant.models.vision.encoder import Encoder, Merger, Norm, Scratch
from ocrquant.models.vision.recorded import RecordedPass
from ocrquant.models.vision.tables import BatchTables, GridTables

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
    _recorded: RecordedPass = field(default_factory=RecordedPass, init=False, repr=False, compare=False)

    @property
    def num_bytes(self) -> int:
        """Bytes of its weights, as they lie in memory; without the tables of grid sizes."""
        last = self.last_norm.num_bytes if self.last_norm is not None else 0
        return self.encoder.num_bytes + last + self.merger.num_bytes + self.tables.learned.nbytes

    def scratch(self, like: Tensor, rows: int) -> Scratch:
        """Memory for a pass, in the dtype and on the device of a tensor.

        Args:
            like: The tensor.
            rows: Patches.
        """
        encoder, merger = self.encoder, self.merger
        width, inner = encoder.patch_embedding.out_features, encoder.blocks[0].fc1.out_features
        tokens = rows * width // merger.fc1.in_features
        return Scratch(
            x=like.new_empty((rows, width)),
            normed=like.new_empty((rows, width)),
            attended=like.new_empty((rows, width)),
            qkv=like.new_empty((rows, 3 * width)),
            hidden=like.new_empty((rows, inner)),
            merged=like.new_empty((tokens, merger.fc1.out_features)),
            tokens=like.new_empty((tokens, merger.fc2.out_features)),
        )

    def run(self, pixels: Tensor, tables: BatchTables, scratch: Scratch) -> Tensor:
        """Launches a whole pass.

        Args:
            pixels: [R, values of a patch].
            tables: Of the R patches.
            scratch: For R patches.

        Returns:
            ``tokens`` of the scratch.
        """
        x = self.encoder(pixels, tables, scratch)
        if self.last_norm is not None:
            self.last_norm(x, x)
        return self.merger(scratch, tables.order)

    def encode(self, pixels: Tensor, grids: Sequence[Grid]) -> Tensor:
        """Embeddings of all images, packed.

        Args:
            pixels: [patches of all images, values of a patch] in the dtype of activations.
            grids: For each image frames, rows and columns of patches.

        Returns:
            [tokens of all images, width of the decoder], memory of its own.

        Raises:
            ShapeError: Pixels and grids do not agree, or blocks of one token do not tile a grid.
        """
        tables = self.tables.batch(grids)
        expected = (tables.cos.shape[0], self.encoder.patch_embedding.in_features)
        if tuple(pixels.shape) != expected:
            fix = "take grid and patches from the model's own processor"
            raise ShapeError("pixels", expected=expected, given=tuple(pixels.shape), fix=fix)
        if self._recorded.takes(pixels):
            return self._recorded.run(self, pixels, tables)
        return self.run(pixels, tables, self.scratch(pixels, len(pixels)))
