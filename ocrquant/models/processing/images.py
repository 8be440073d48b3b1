"""An image to patches: resized, cut and put in the order in which the vision tower reads them.

Patches stay 8-bit: what normalization makes of a pixel depends on its channel and value alone, so that 256
values a channel say all (`ImageSpec.levels`), and a page that crosses from a worker process is eight times
smaller than in the floats that the tower reads. Needs NumPy and Pillow only, and pickles, for workers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from ocrquant.errors import ModelError
from ocrquant.models.grids import Grid
from ocrquant.models.processing.resize import RULES

__all__ = ["CHANNELS", "ImageSpec", "image_spec"]

CHANNELS = 3
_SAMPLE = 64  # pixels a side that tell a large image in color


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSpec:
    """What happens to an image before the vision tower.

    Attributes:
        rule: Name of the rule in `resize.RULES`.
        block_order: Patches of one token lie together (Qwen); else they lie in raster order (PaddleOCR-VL).
        patch_size: Side of a patch in pixels.
        temporal_patch_size: Frames in a patch; the one frame of an image is repeated.
        merge_size: Patches along each side that make one token.
        min_pixels: Fewest pixels after resizing.
        max_pixels: Most pixels after resizing.
        resample: Filter of `PIL.Image.Image.resize`, by its number.
        rescale_factor: What a pixel is multiplied by first; None: nothing.
        mean: Of each channel, subtracted then; None: neither this nor the next.
        std: Of each channel, divided by then.
    """

    rule: str
    block_order: bool
    patch_size: int
    temporal_patch_size: int
    merge_size: int
    min_pixels: int
    max_pixels: int
    resample: int
    rescale_factor: float | None
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None

    @property
    def factor(self) -> int:
        """Pixels along a side of one token."""
        return self.patch_size * self.merge_size

    @property
    def frame_values(self) -> int:
        """Values of a patch as `patches` cuts it: channels, rows, columns."""
        return CHANNELS * self.patch_size**2

    def grid(self, width: int, height: int) -> Grid:
        """Frames, rows and columns of patches of an image, from its size alone.

        Raises:
            PageSizeError: The image is too narrow.
        """
        rows, columns = RULES[self.rule](height, width, self.factor, self.min_pixels, self.max_pixels)
        return 1, rows // self.patch_size, columns // self.patch_size

    def num_tokens(self, width: int, height: int) -> int:
        """Tokens that an image takes, from its size alone.

        Raises:
            PageSizeError: The image is too narrow.
        """
        frames, rows, columns = self.grid(width, height)
        return frames * rows * columns // self.merge_size**2

    def patches(self, image: Image.Image) -> tuple[npt.NDArray[np.uint8], Grid]:
        """Cuts an image.

        Returns:
            uint8 [patches, channels * patch_size ** 2], one frame of each patch, channel by channel and row
            by row; and the grid.

        Raises:
            PageSizeError: The image is too narrow.
        """
        frames, rows, columns = grid = self.grid(image.width, image.height)
        side, merge = self.patch_size, self.merge_size
        one_channel = _as_gray(image)
        source = one_channel if one_channel is not None else image.convert("RGB")
        resized = source.resize((columns * side, rows * side), Image.Resampling(self.resample))
        pixels = np.asarray(resized).reshape(rows * side, columns * side, -1)
        if self.block_order:
            blocks = pixels.reshape(rows // merge, merge, side, columns // merge, merge, side, -1)
            patches = blocks.transpose(0, 3, 1, 4, 6, 2, 5)
        else:
            patches = pixels.reshape(rows, side, columns, side, -1).transpose(0, 2, 4, 1, 3)
        shape = (*patches.shape[:-3], CHANNELS, side, side)
        return np.ascontiguousarray(np.broadcast_to(patches, shape)).reshape(
            frames * rows * columns, -1
        ), grid

    def levels(self) -> npt.NDArray[np.float32]:
        """float32 [channels, 256]: what the tower reads for each value of a pixel.

        Double precision, then single, as ``transformers.image_transforms.rescale`` and ``normalize`` round.
        """
        values = np.tile(np.arange(256), (CHANNELS, 1))
        levels = values.astype(np.float32)
        if self.rescale_factor is not None:
            levels = (values.astype(np.float64) * self.rescale_factor).astype(np.float32)
        if self.mean is not None and self.std is not None:
            mean, std = (np.asarray(v, dtype=np.float32)[:, None] for v in (self.mean, self.std))
            levels = (levels - mean) / std
        return levels

    def digest(self, patches: npt.NDArray[np.uint8], grid: Grid) -> bytes:
        """16 bytes that name what the tower sees of an image: equal for equal patches in an equal grid."""
        state = hashlib.blake2b(np.asarray(grid, dtype=np.int64).tobytes(), digest_size=16)
        state.update(np.ascontiguousarray(patches).data)
        return state.digest()


_QWEN: Mapping[str, Any] = {
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280},
}
_PADDLE: Mapping[str, Any] = {
    "patch_size": 14,
    "temporal_patch_size": 1,
    "merge_size": 2,
    "size": {"shortest_edge": 384 * 384, "longest_edge": 1536 * 1536},
}
# Of transformers' OPENAI_CLIP_MEAN and OPENAI_CLIP_STD, which both processors fall back on.
_CLIP: Mapping[str, Any] = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "rescale_factor": 1 / 255,
    "resample": int(Image.Resampling.BICUBIC),
}
FAMILIES: Mapping[str, tuple[str, bool, Mapping[str, Any]]] = {
    "qwen3_5": ("qwen", True, _QWEN),
    "paddleocr_vl": ("paddleocr_vl", False, _PADDLE),
}
"""``model_type`` -> rule of resizing, whether patches lie in blocks, defaults of the processor's settings."""


def image_spec(model_type: str, settings: Mapping[str, Any], where: object) -> ImageSpec:
    """The steps of a family with the settings of a ``preprocessor_config.json``.

    Args:
        model_type: Of ``config.json``.
        settings: The file's content.
        where: What an error message calls the file.

    Raises:
        ModelError: An unknown family, a setting that is malformed, or one that turns off a step which the
            tower depends on.
    """
    if model_type not in FAMILIES:
        expected = f"one of the families {', '.join(FAMILIES)}"
        raise ModelError(where, expected=expected, given=model_type, fix="see the supported models")
    rule, block_order, defaults = FAMILIES[model_type]
    merged = {**_CLIP, **defaults, **settings}
    for step in ("do_resize", "do_convert_rgb"):
        if not merged.get(step, True):
            raise ModelError(where, expected=f"{step} true", given="false", fix="let the processor do it")
    try:
        low, high = _pixel_range(merged["size"], settings, defaults["size"])
        rescale, normalize = merged.get("do_rescale", True), merged.get("do_normalize", True)
        spec = ImageSpec(
            rule=rule,
            block_order=block_order,
            patch_size=int(merged["patch_size"]),
            temporal_patch_size=int(merged["temporal_patch_size"]),
            merge_size=int(merged["merge_size"]),
            min_pixels=low,
            max_pixels=high,
            resample=int(Image.Resampling(int(merged["resample"]))),
            rescale_factor=float(merged["rescale_factor"]) if rescale else None,
            mean=_channels(merged["image_mean"]) if normalize else None,
            std=_channels(merged["image_std"]) if normalize else None,
        )
    except (KeyError, TypeError, ValueError) as error:
        fix = "fetch the file of the model's authors again"
        raise ModelError(where, expected="settings of an image processor", given=error, fix=fix) from error
    _check(spec, where)
    return spec


def _pixel_range(
    size: Mapping[str, Any], settings: Mapping[str, Any], defaults: Mapping[str, int]
) -> tuple[int, int]:
    """Fewest and most pixels; ``min_pixels`` and ``max_pixels`` of older files go first."""
    low = settings.get("min_pixels") or size.get("shortest_edge") or defaults["shortest_edge"]
    high = settings.get("max_pixels") or size.get("longest_edge") or defaults["longest_edge"]
    return int(low), int(high)


def _channels(value: Any) -> tuple[float, ...]:
    values = [value] * CHANNELS if isinstance(value, int | float) else list(value)
    if len(values) != CHANNELS:
        raise ValueError(f"{len(values)} values for {CHANNELS} channels")
    return tuple(float(v) for v in values)


def _check(spec: ImageSpec, where: object) -> None:
    if min(spec.patch_size, spec.temporal_patch_size, spec.merge_size, spec.min_pixels) < 1:
        raise ModelError(where, expected="sizes from 1", given=spec, fix="fetch the file again")
    if spec.max_pixels < max(spec.min_pixels, spec.factor**2):
        expected = f"at least {max(spec.min_pixels, spec.factor**2)} pixels at most"
        raise ModelError(where, expected=expected, given=spec.max_pixels, fix="fetch the file again")


def _as_gray(image: Image.Image) -> Image.Image | None:
    """One channel that stands for all three; None where they differ.

    Pillow resizes every channel by itself and with the same numbers, so one of three equal ones says all.
    Scans and printed text mostly are gray: cutting a crop of 130 patches takes 0.15 ms instead of 0.24, and
    finding out that it is not adds a tenth. Of large images some pixels are looked at first: all of a page of
    12 million in color took 101 ms beside 261 for resizing it, and these take 0.03 (Xeon family 6 model 207,
    2026-11-30).
    """
    if image.mode == "L":
        return image
    if image.mode != "RGB":
        return None
    if min(image.size) > 2 * _SAMPLE:
        sample = image.resize((_SAMPLE, _SAMPLE), Image.Resampling.NEAREST)
        if not _are_equal(sample.split()):
            return None
    channels = image.split()
    return channels[0] if _are_equal(channels) else None


def _are_equal(channels: Sequence[Image.Image]) -> bool:
    first = channels[0].tobytes()
    return all(first == other.tobytes() for other in channels[1:])
