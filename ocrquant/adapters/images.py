"""How each family turns an image into tokens and tensors, with the image processors that need only Pillow.

A reader knows how many tokens an image takes from its size alone, which tokens stand for it in the prompt,
and under which names the model takes its tensors. Knows no text and no weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import torch
from PIL import Image
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ocrquant.adapters.families import Family

__all__ = ["ImageReader", "ImageTokens", "Vision", "open_images"]


@dataclass(frozen=True, slots=True)
class ImageTokens:
    """What stands for one image in a sequence.

    Attributes:
        ids: Its tokens; those that hold a feature are the image token of the model.
        grid: Rows and columns of features, for families whose positions follow them; else one row.
    """

    ids: list[int]
    grid: tuple[int, int]


Vision = dict[str, Tensor]
"""Tensors of a batch of images by the names under which the model takes them."""


class ImageReader(Protocol):
    """Images of one family."""

    def num_tokens(self, width: int, height: int) -> int:
        """Tokens of an image of so many pixels.

        Raises:
            ValueError: It is too narrow.
        """

    def read(self, images: Sequence[Image.Image]) -> tuple[Vision, list[ImageTokens]]:
        """Tensors of RGB images, and the tokens of each."""


@dataclass(frozen=True, slots=True)
class _Reader:
    """What all readers know.

    Attributes:
        processor: Of `transformers`, with the settings of the folder.
        tokenizer: Of the folder.
        config: Configuration of the model.
    """

    processor: Any
    tokenizer: PreTrainedTokenizerBase
    config: Any

    @property
    def image_id(self) -> int:
        return int(self.config.image_token_id)

    def run(self, images: Sequence[Any], names: Sequence[str], **options: Any) -> tuple[Any, Vision]:
        """Output of the processor, and those of its tensors that the model takes."""
        output = self.processor(images=list(images), return_tensors="pt", **options)
        return output, {name: torch.as_tensor(output[name]) for name in names if name in output}

    def plain(self, count: int) -> ImageTokens:
        return ImageTokens([self.image_id] * count, (1, count))


class _Patches(_Reader):
    """Qwen-VL and its kin: any size, cut into patches, some of which make one token."""

    @property
    def merge(self) -> int:
        return int(self.processor.merge_size)

    def num_tokens(self, width: int, height: int) -> int:
        return int(self.processor.get_number_of_image_patches(height, width, {})) // self.merge**2

    def read(self, images: Sequence[Image.Image]) -> tuple[Vision, list[ImageTokens]]:
        _, vision = self.run(images, ("pixel_values", "image_grid_thw"))
        patches: list[list[int]] = vision["image_grid_thw"].tolist()
        grids = [(rows // self.merge, columns // self.merge) for _, rows, columns in patches]
        return vision, [ImageTokens([self.image_id] * (grid[0] * grid[1]), grid) for grid in grids]


class _Square(_Reader):
    """GOT-OCR 2: one square of fixed size, whatever the image."""

    def num_tokens(self, width: int, height: int) -> int:
        vision = self.config.vision_config
        # Two convolutions of stride two follow the patches (`GotOcr2MultiModalProjector`).
        return int((_side(vision.image_size) // _side(vision.patch_size) // 4) ** 2)

    def read(self, images: Sequence[Image.Image]) -> tuple[Vision, list[ImageTokens]]:
        _, vision = self.run(images, ("pixel_values",), crop_to_patches=False)
        return vision, [self.plain(self.num_tokens(image.width, image.height)) for image in images]


class _Tiles(_Reader):
    """InternVL: square tiles that fit the shape of the image, and the whole as one more."""

    def num_tokens(self, width: int, height: int) -> int:
        vision = self.config.vision_config
        side = _side(vision.image_size) // _side(vision.patch_size)
        tiles = self.processor.get_number_of_image_patches(height, width, {"crop_to_patches": True})
        return 2 + int(tiles) * int((side * self.config.downsample_ratio) ** 2)

    def read(self, images: Sequence[Image.Image]) -> tuple[Vision, list[ImageTokens]]:
        _, vision = self.run(images, ("pixel_values",), crop_to_patches=True)
        start, end = (int(self.tokenizer.convert_tokens_to_ids(token)) for token in ("<img>", "</img>"))
        counts = [self.num_tokens(image.width, image.height) for image in images]
        return vision, [ImageTokens([start, *[self.image_id] * (n - 2), end], (1, n)) for n in counts]


class _Rows(_Reader):
    """Idefics3 and SmolVLM: rows of tiles that the prompt spells out, and the whole behind them."""

    @property
    def tile(self) -> str:
        vision = self.config.vision_config
        side = _side(vision.image_size) // _side(vision.patch_size) // int(self.config.scale_factor)
        return str(self.tokenizer.convert_ids_to_tokens(self.image_id)) * side**2

    def ids(self, width: int, height: int) -> list[int]:
        _, rows, columns = self.processor.get_number_of_image_patches(height, width, {})
        around, tile = "<fake_token_around_image>", self.tile
        text = "".join(
            "".join(f"{around}<row_{row + 1}_col_{column + 1}>{tile}" for column in range(columns)) + "\n"
            for row in range(rows)
        )
        text += ("\n" if rows else "") + f"{around}<global-img>{tile}{around}"
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def num_tokens(self, width: int, height: int) -> int:
        return len(self.ids(width, height))

    def read(self, images: Sequence[Image.Image]) -> tuple[Vision, list[ImageTokens]]:
        _, vision = self.run([[image] for image in images], ("pixel_values", "pixel_attention_mask"))
        found = [self.ids(image.width, image.height) for image in images]
        return vision, [ImageTokens(ids, (1, len(ids))) for ids in found]


class _Sizes(_Reader):
    """LightOn-OCR: any size up to a longest edge, padded to the largest of a batch."""

    def _count(self, height: int, width: int) -> int:
        side = _side(self.config.vision_config.patch_size) * int(self.config.spatial_merge_size)
        return (height // side) * (width // side)

    def num_tokens(self, width: int, height: int) -> int:
        patch = self.processor.patch_size
        sides = patch["height"] if isinstance(patch, Mapping) else patch.height
        longest = int(self.processor.size["longest_edge"])
        # As `PixtralImageProcessor.resize` rounds.
        ratio = max(height / longest, width / longest)
        if ratio > 1:
            height, width = math.floor(height / ratio), math.floor(width / ratio)
        return self._count(*(((size - 1) // sides + 1) * sides for size in (height, width)))

    def read(self, images: Sequence[Image.Image]) -> tuple[Vision, list[ImageTokens]]:
        _, vision = self.run(images, ("pixel_values", "image_sizes"))
        sizes: list[list[int]] = vision["image_sizes"].tolist()
        return vision, [self.plain(self._count(height, width)) for height, width in sizes]


class _Views(_Reader):
    """DeepSeek-OCR 2: the whole, tiles where it is large, and a separator."""

    def num_tokens(self, width: int, height: int) -> int:
        tiles = 0
        if self.processor.crop_to_patches and max(width, height) > self.processor.tile_size:
            module = import_module(type(self.processor).__module__)
            columns, rows = module.get_optimal_tiled_canvas(
                (height, width),
                (self.processor.tile_size,) * 2,
                self.processor.min_patches,
                self.processor.max_patches,
            )
            tiles = columns * rows
        return self._count(tiles)

    def _count(self, tiles: int) -> int:
        # A convolution of stride two halves the patches of the encoder twice (`DeepseekOcr2SamVisionProj`).
        patch = 4 * _side(self.config.vision_config.sam_config.patch_size)
        whole, tile = (math.ceil(side / patch) for side in (self._whole, self.processor.tile_size))
        return int(whole**2 + tiles * tile**2 + 1)

    @property
    def _whole(self) -> int:
        return int(self.processor.size["height"])

    def read(self, images: Sequence[Image.Image]) -> tuple[Vision, list[ImageTokens]]:
        output, vision = self.run(images, ("pixel_values", "pixel_values_local", "num_local_patches"))
        return vision, [self.plain(self._count(int(tiles))) for tiles in output["num_local_patches"]]


def _side(size: Any) -> int:
    return int(size[0] if isinstance(size, list | tuple) else size)


_READERS: Mapping[str, Callable[[Any, PreTrainedTokenizerBase, Any], ImageReader]] = {
    "patches": _Patches,
    "square": _Square,
    "tiles": _Tiles,
    "rows": _Rows,
    "sizes": _Sizes,
    "views": _Views,
}


def open_images(family: Family, folder: Path, tokenizer: PreTrainedTokenizerBase, config: Any) -> ImageReader:
    """The reader of a family with the settings of a model folder.

    Raises:
        OSError, ValueError: The folder has no usable settings of an image processor.
    """
    module, _, name = family.image_processor.partition(":")
    kind = getattr(import_module(f"transformers.models.{module}"), name)
    return _READERS[family.images](kind.from_pretrained(folder, local_files_only=True), tokenizer, config)
