"""What is really on the page: the pixels against the characters that are said to be there.

Knows two renderings of a page, with its text and without. A character counts as seen where hiding the text
changes pixels, so neither a covering picture nor a scan behind an invisible text layer passes. Knows
nothing of why a line was cut.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ocrquant.pages.glyphs import Box, Glyph

__all__ = ["MAX_FOREIGN_INK", "PixelBox", "RenderedPage"]

MAX_FOREIGN_INK = 0.08

# Of 255 levels of grey; text paler than this against its background is not legible after resizing either.
_MIN_CONTRAST = 48
_PAD_X = 2
_PAD_Y = 1
# Antialiasing spreads ink by up to a pixel beyond an outline.
_SPREAD = 1


@dataclass(frozen=True, slots=True)
class PixelBox:
    """A rectangle in pixels, y downwards, right and bottom excluded."""

    left: int
    top: int
    right: int
    bottom: int

    def grown(self, x: int, y: int) -> PixelBox:
        """The box with a margin."""
        return PixelBox(self.left - x, self.top - y, self.right + x, self.bottom + y)

    def overlaps(self, other: PixelBox) -> bool:
        """Whether they share a pixel."""
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )


class RenderedPage:
    """A page in pixels and everything needed to tell whose ink is where.

    Args:
        image: The page as RGB.
        background: The same page without its text, as 8-bit grey, same size.
        origin: Left and top edge of the visible page in PDF points.
        zoom: Pixels a point.
        glyphs: All characters of the page.
    """

    def __init__(
        self,
        image: Image.Image,
        background: Image.Image,
        origin: tuple[float, float],
        zoom: float,
        glyphs: list[Glyph],
    ) -> None:
        self._image = image
        self._background = np.asarray(background, dtype=np.int16)
        page = np.asarray(image.convert("L"), dtype=np.int16)
        self._text_ink = np.abs(page - self._background) >= _MIN_CONTRAST
        self._origin = origin
        self._zoom = zoom
        self._drawn = [
            (glyph, self.pixels(glyph.box)) for glyph in glyphs if not (glyph.is_space or glyph.is_hidden)
        ]

    def pixels(self, box: Box) -> PixelBox:
        """The smallest box of whole pixels around a box in points."""
        left, top = self._origin
        return PixelBox(
            int(np.floor((box.left - left) * self._zoom)),
            int(np.floor((top - box.top) * self._zoom)),
            int(np.ceil((box.right - left) * self._zoom)),
            int(np.ceil((top - box.bottom) * self._zoom)),
        )

    def crop_box(self, boxes: list[Box]) -> PixelBox:
        """Where a crop around some boxes in points is cut: with a narrow margin."""
        return self.pixels(Box.around(boxes)).grown(_PAD_X, _PAD_Y)

    def fault(self, crop: PixelBox, own: tuple[Glyph, ...]) -> str | None:
        """Why a crop does not show exactly its characters, None where it does.

        Args:
            crop: The crop.
            own: The characters that its text is made of.
        """
        height, width = self._text_ink.shape
        if crop.left < 0 or crop.top < 0 or crop.right > width or crop.bottom > height:
            return "outside the page"
        boxes = [self.pixels(glyph.box).grown(_SPREAD, _SPREAD) for glyph in own]
        if not all(self._text_ink[_slices(box)].any() for box in boxes):
            return "no ink under a character"
        mine = {glyph.index for glyph in own}
        if any(crop.overlaps(box) for glyph, box in self._drawn if glyph.index not in mine):
            return "other text in the crop"
        foreign, share = self._foreign_ink(crop, boxes)
        if share >= MAX_FOREIGN_INK:
            return "foreign ink"
        edge = np.concatenate([foreign[0], foreign[-1], foreign[:, 0], foreign[:, -1]])
        return "something cut off at the edge" if edge.any() else None

    def cut(self, crop: PixelBox) -> Image.Image:
        """The crop's pixels; 8-bit grey where there is no colour in it."""
        image = self._image.crop((crop.left, crop.top, crop.right, crop.bottom))
        channels = np.asarray(image)
        is_grey = (channels == channels[..., :1]).all()
        return image.convert("L") if is_grey else image

    def _foreign_ink(self, crop: PixelBox, boxes: list[PixelBox]) -> tuple[NDArray[np.bool_], float]:
        """Where in the crop there is ink that no own character accounts for, and its share of all ink."""
        area = _slices(crop)
        allowed = np.zeros(self._text_ink[area].shape, dtype=bool)
        for box in boxes:
            allowed[_slices(box, crop)] = True
        background: NDArray[np.int16] = self._background[area]
        paper = int(np.median(background))
        text = self._text_ink[area]
        foreign: NDArray[np.bool_] = (np.abs(background - paper) >= _MIN_CONTRAST) | (text & ~allowed)
        return foreign, float(foreign.sum() / max(1, (foreign | text).sum()))


def _slices(box: PixelBox, inside: PixelBox = PixelBox(0, 0, 0, 0)) -> tuple[slice, slice]:
    """Rows and columns of a box in an array whose first element is the corner of another box."""
    return (
        slice(max(box.top - inside.top, 0), max(box.bottom - inside.top, 0)),
        slice(max(box.left - inside.left, 0), max(box.right - inside.left, 0)),
    )
