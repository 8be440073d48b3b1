"""What a request asks: tokens, where its images stand among them, and the position of every token.

Knows index arithmetic only: images are their digests, their grids and whatever the preprocessing made of
their pixels, which is handed on unseen.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ocrquant.errors import RequestError

__all__ = ["Prompt", "PromptImage", "text_prompt"]

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class PromptImage:
    """An image and the run of placeholder tokens that it fills.

    Attributes:
        digest: Of its pixels as the model sees them; equal digests mean equal images.
        start: Index of its first token in the prompt.
        num_tokens: Length of its run.
        grid: Frames, rows and columns of patches.
        pixels: Patches for the model's vision side; opaque here.
    """

    digest: bytes
    start: int
    num_tokens: int
    grid: tuple[int, int, int]
    pixels: Any = None

    @property
    def end(self) -> int:
        """Index of the first token after it."""
        return self.start + self.num_tokens


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """A tokenized prompt.

    Attributes:
        tokens: int32 [L]; an image's run holds the placeholder token.
        positions: int32 [axes, L].
        rope_delta: Token i of the answer, counted from the prompt's start, has position i + rope_delta on all
            axes: an image takes fewer positions than tokens.
        images: In order of their runs.

    Raises:
        RequestError: No tokens, shapes that do not agree, or runs that overlap or leave the prompt.
    """

    tokens: Int32
    positions: Int32
    rope_delta: int = 0
    images: tuple[PromptImage, ...] = ()

    def __post_init__(self) -> None:
        for name, array in (("tokens", self.tokens), ("positions", self.positions)):
            if not isinstance(array, np.ndarray):
                raise _refused(f"prompt.{name}", "an int32 array", type(array).__name__)
        if self.tokens.ndim != 1 or len(self.tokens) == 0 or self.tokens.dtype != np.int32:
            given = f"{self.tokens.dtype} {list(self.tokens.shape)}"
            raise _refused("prompt.tokens", "int32 [L] with at least one token", given)
        expected = f"int32 [axes, {len(self.tokens)}]"
        if self.positions.shape[1:] != self.tokens.shape or self.positions.dtype != np.int32:
            given = f"{self.positions.dtype} {list(self.positions.shape)}"
            raise _refused("prompt.positions", expected, given)
        end = 0
        for number, image in enumerate(self.images):
            if image.start < end or image.num_tokens < 1 or image.end > len(self.tokens):
                expected = f"a run within [{end}, {len(self.tokens)})"
                raise _refused(f"prompt.images[{number}]", expected, f"[{image.start}, {image.end})")
            end = image.end

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def images_end(self) -> int:
        """Index after the last image token; 0 without images."""
        return self.images[-1].end if self.images else 0

    def image_runs(self, start: int, end: int) -> list[tuple[int, int]]:
        """Runs [first, last) of image tokens within tokens [start, end)."""
        runs = [(max(start, image.start), min(end, image.end)) for image in self.images]
        return [(first, last) for first, last in runs if first < last]

    def image_rows(self, start: int, end: int) -> tuple[int, int]:
        """Rows [first, last) of the prompt's encoded images, packed in order, that tokens [start, end) take.

        They are consecutive, since every image token takes the next row.
        """
        first = sum(last - begin for begin, last in self.image_runs(0, start))
        return first, first + sum(last - begin for begin, last in self.image_runs(start, end))

    def prefix_digest(self, num_tokens: int) -> bytes:
        """Names the first tokens and their images: equal digests mean equal keys, values and states."""
        digest = hashlib.blake2b(self.tokens[:num_tokens].tobytes(), digest_size=16)
        digest.update(np.ascontiguousarray(self.positions[:, :num_tokens]).tobytes())
        for image in self.images:
            if image.start < num_tokens:
                # The length of the digest keeps two images from passing as one.
                digest.update(len(image.digest).to_bytes(4, "little") + image.digest)
                digest.update(np.array([image.start, image.num_tokens, *image.grid], np.int64).tobytes())
        return digest.digest()


def text_prompt(tokens: list[int] | Int32, axes: int) -> Prompt:
    """A prompt without images: positions count up on all axes."""
    ids = np.asarray(tokens, np.int32)
    return Prompt(ids, np.tile(np.arange(len(ids), dtype=np.int32), (axes, 1)))


def _refused(thing: str, expected: str, given: str) -> RequestError:
    return RequestError(
        thing, expected=expected, given=given, fix="build the prompt with the model's encoder"
    )
