"""From crops to training samples: spans of lines, stacks of lines, and where each character stands.

Knows pictures and text in NumPy; knows nothing of tokens or tensors. Every random choice comes from the
generator that is handed in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from PIL import Image

from ocrquant.pico.corpus import Crop
from ocrquant.pico.geometry import resized

WHITE = 255
MARGIN_PIXELS = 4
SCALE_RANGE = (0.9, 1.12)
LEADING_RANGE = (0.95, 1.6)
MAX_STACK = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One training picture.

    `grey` is uint8 [height, width], both multiples of the vision token. For each character of `text`:
    `char_x` is the x of its centre (float32 [n], NaN where unknown), `line_y` the top and bottom of its line
    (float32 [n, 2]).
    """

    grey: np.ndarray
    text: str
    kind: str
    char_x: np.ndarray
    line_y: np.ndarray


def centres(text: str, char_x: np.ndarray) -> np.ndarray:
    """Centre of every character of a line, float32 [len(text)].

    Spaces lie midway; NaN where the crop has no places.
    """
    places = np.full(len(text), np.nan, dtype=np.float32)
    solid = np.array([not character.isspace() for character in text], dtype=bool)
    if len(char_x) != int(solid.sum()) or not solid.any():
        return places
    index = np.arange(len(text))
    places[:] = np.interp(index, index[solid], char_x)
    return places


def background(grey: np.ndarray) -> int:
    """The commonest grey level on the border of a crop, 0 to 255."""
    border = np.concatenate([grey[0], grey[-1], grey[:, 0], grey[:, -1]])
    return int(np.bincount(border, minlength=256).argmax())


def cut_span(
    crop: Crop, places: np.ndarray, max_width: int, rng: np.random.Generator
) -> tuple[np.ndarray, str, np.ndarray]:
    """A random run of whole words at most about `max_width` pixels wide.

    Picture, text and places of that run.
    """
    width = crop.grey.shape[1]
    if width <= max_width or np.isnan(places).any():
        return crop.grey, crop.text, places
    spaces = [i for i, character in enumerate(crop.text) if character == " "]
    starts = [0, *[i + 1 for i in spaces if i + 1 < len(crop.text)]]
    first = starts[int(rng.integers(len(starts)))]
    left = 0 if first == 0 else int(places[first - 1])
    ends = [i for i in [*spaces, len(crop.text)] if i > first]
    fitting = [i for i in ends if (width if i == len(crop.text) else places[i]) - left <= max_width] or ends[
        :1
    ]
    last = fitting[-1]
    right = width if last == len(crop.text) else int(np.ceil(places[last]))
    return crop.grey[:, left:right], crop.text[first:last], places[first:last] - left


def _finish(
    grey: np.ndarray,
    text: str,
    kind: str,
    char_x: np.ndarray,
    line_y: np.ndarray,
    rng: np.random.Generator | None,
) -> Sample:
    """Bring a picture to the processor's size; with `rng`, after adding margins and scaling a little."""
    fill = background(grey)
    if rng is not None:
        top, bottom, left, right = (int(m) for m in rng.integers(0, MARGIN_PIXELS + 1, 4))
        grey = np.pad(grey, ((top, bottom), (left, right)), constant_values=fill)
        char_x, line_y = char_x + left, line_y + top
    height, width = grey.shape
    scale_y, scale_x = (
        (1.0, 1.0)
        if rng is None
        else np.exp(rng.uniform(math.log(SCALE_RANGE[0]), math.log(SCALE_RANGE[1]), size=2))
    )
    new_height, new_width = resized(max(2, round(height * scale_y)), max(2, round(width * scale_x)))
    if (new_height, new_width) != grey.shape:
        grey = np.asarray(Image.fromarray(grey).resize((new_width, new_height), Image.Resampling.BICUBIC))
    return Sample(
        grey=grey,
        text=text,
        kind=kind,
        char_x=char_x * np.float32(new_width / width),
        line_y=line_y * np.float32(new_height / height),
    )


def plain_sample(crop: Crop, rng: np.random.Generator | None = None, max_width: int | None = None) -> Sample:
    """A line or block crop as it is, or a run of words of a line when `max_width` is given."""
    is_line = crop.kind == "line"
    places = centres(crop.text, crop.char_x) if is_line else np.full(len(crop.text), np.nan, dtype=np.float32)
    grey, text = crop.grey, crop.text
    if is_line and max_width is not None and rng is not None:
        grey, text, places = cut_span(crop, places, max_width, rng)
    line_y = np.tile(np.array([[0.0, grey.shape[0]]], dtype=np.float32), (len(text), 1))
    return _finish(grey, text, crop.kind, places, line_y, rng)


def stack_lines(crops: list[Crop], rng: np.random.Generator, max_width: int) -> Sample:
    """A block made of the given lines (same font, size and resolution), one under the other on white."""
    pieces = [cut_span(crop, centres(crop.text, crop.char_x), max_width, rng) for crop in crops]
    pitch = max(piece[0].shape[0] for piece in pieces) * float(rng.uniform(*LEADING_RANGE))
    indent = [int(rng.integers(0, 40)) if rng.random() < 0.15 else 0 for _ in pieces]
    tops = [round(i * pitch) for i in range(len(pieces))]
    height = max(top + piece[0].shape[0] for top, piece in zip(tops, pieces, strict=True))
    width = max(left + piece[0].shape[1] for left, piece in zip(indent, pieces, strict=True))
    canvas = np.full((height, width), WHITE, dtype=np.uint8)
    places, lines = [], []
    for (grey, text, char_x), left, top in zip(pieces, indent, tops, strict=True):
        region = canvas[top : top + grey.shape[0], left : left + grey.shape[1]]
        np.minimum(region, grey, out=region)
        count = len(text) + 1
        places.append(np.append(char_x + left, np.float32(np.nan)))
        lines.append(np.tile(np.array([[top, top + grey.shape[0]]], dtype=np.float32), (count, 1)))
    text = "\n".join(piece[1] for piece in pieces)
    return _finish(canvas, text, "block", np.concatenate(places)[:-1], np.concatenate(lines)[:-1], rng)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """What a stretch of training looks like.

    Widest span in pixels, and the shares of stacks and of real blocks.
    """

    max_width: int
    stack_share: float
    block_share: float
    stack_lines: int = MAX_STACK


class SampleStream:
    """Endless training samples from line and block crops, by the shares of a `Mixture`."""

    def __init__(self, lines: list[Crop], blocks: list[Crop], rng: np.random.Generator) -> None:
        """Keep the crops.

        Lines on a light background with known places are also grouped by style for stacking.
        """
        self.lines, self.blocks, self.rng = lines, blocks, rng
        styles: dict[tuple[str, float, int], list[Crop]] = {}
        for crop in lines:
            if len(crop.char_x) and background(crop.grey) >= 250:
                styles.setdefault(crop.style, []).append(crop)
        self.styles = [group for group in styles.values() if len(group) > 1]
        sizes = np.array([len(group) for group in self.styles], dtype=np.float64)
        self.style_weights = sizes / sizes.sum() if len(sizes) else sizes

    def draw(self, mixture: Mixture) -> Sample:
        """One sample."""
        choice = self.rng.random()
        if self.blocks and choice < mixture.block_share:
            return plain_sample(self.blocks[int(self.rng.integers(len(self.blocks)))], self.rng)
        if self.styles and choice < mixture.block_share + mixture.stack_share:
            group = self.styles[int(self.rng.choice(len(self.styles), p=self.style_weights))]
            count = min(len(group), int(self.rng.integers(2, mixture.stack_lines + 1)))
            first = int(self.rng.integers(len(group) - count + 1))
            return stack_lines(group[first : first + count], self.rng, mixture.max_width)
        crop = self.lines[int(self.rng.integers(len(self.lines)))]
        return plain_sample(crop, self.rng, mixture.max_width)
