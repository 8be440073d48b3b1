"""The size in pixels that an image is brought to before it is cut into patches, from its own size alone.

One rule a family, each as the authors' image processor has it, rounding included: the number of tokens of a
page follows from it, and a token more or less than the model makes is an error. Knows no pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from ocrquant.errors import PageSizeError

__all__ = ["MAX_ASPECT", "RULES", "Rule", "paddleocr_vl_size", "qwen_size"]

MAX_ASPECT = 200
"""Longest side over shortest, in both families."""

Rule = Callable[[int, int, int, int, int], tuple[int, int]]
"""(height, width, factor, min_pixels, max_pixels) -> (height, width), both multiples of factor."""


def qwen_size(height: int, width: int, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """Nearest multiples of the factor, scaled alike into the range of pixels.

    ``transformers.models.qwen2_vl.image_processing_qwen2_vl.smart_resize``; Python's ``round`` (ties to even)
    belongs to the rule.

    Args:
        height: Of the image, in pixels.
        width: Of the image, in pixels.
        factor: Pixels along a side of one token.
        min_pixels: Fewest after resizing.
        max_pixels: Most after resizing.

    Raises:
        PageSizeError: One side is more than 200 times the other.
    """
    _check_pixels(height, width)
    _check_aspect(height, width)
    return _fit(height, width, factor, min_pixels, max_pixels)


def paddleocr_vl_size(
    height: int, width: int, factor: int, min_pixels: int, max_pixels: int
) -> tuple[int, int]:
    """As `qwen_size` for an image whose shorter sides are first brought up to the factor.

    ``transformers.models.paddleocr_vl.image_processing_paddleocr_vl.smart_resize``.

    Args:
        height: Of the image, in pixels.
        width: Of the image, in pixels.
        factor: Pixels along a side of one token.
        min_pixels: Fewest after resizing.
        max_pixels: Most after resizing.

    Raises:
        PageSizeError: One side is more than 200 times the other, after both are as long as the factor.
    """
    _check_pixels(height, width)
    if height < factor:
        height, width = factor, round(width * factor / height)
    if width < factor:
        height, width = round(height * factor / width), factor
    _check_aspect(height, width)
    return _fit(height, width, factor, min_pixels, max_pixels)


RULES: Mapping[str, Rule] = MappingProxyType({"qwen": qwen_size, "paddleocr_vl": paddleocr_vl_size})
"""Rules by name, so that what names one can be sent to another process."""


def _check_pixels(height: int, width: int) -> None:
    if min(height, width) < 1:
        raise PageSizeError("image", expected="pixels", given=f"{width} x {height}", fix="leave it out")


def _check_aspect(height: int, width: int) -> None:
    if max(height, width) / min(height, width) > MAX_ASPECT:
        raise PageSizeError(
            "image",
            expected=f"one side at most {MAX_ASPECT} times the other",
            given=f"{width} x {height} pixels",
            fix="crop it",
        )


def _fit(height: int, width: int, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    rows, columns = round(height / factor) * factor, round(width / factor) * factor
    if rows * columns > max_pixels:
        shrink = math.sqrt(height * width / max_pixels)
        rows = max(factor, math.floor(height / shrink / factor) * factor)
        columns = max(factor, math.floor(width / shrink / factor) * factor)
    elif rows * columns < min_pixels:
        grow = math.sqrt(min_pixels / (height * width))
        rows = math.ceil(height * grow / factor) * factor
        columns = math.ceil(width * grow / factor) * factor
    return rows, columns
