"""A page to what the engine needs of it: tokens with a run of placeholders, patches, positions.

Knows one sequence (prompt, one image, prompt). Knows no text: instructions come as tokens. Needs NumPy and
Pillow only, and pickles, so that a worker process encodes pages without loading torch or a tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

from ocrquant.errors import PageSizeError, RecipeError
from ocrquant.models.grids import Grid
from ocrquant.models.processing.images import ImageSpec

__all__ = ["EncodedPage", "PageEncoder", "PromptTokens", "image_positions"]


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """An instruction in the chat template.

    Attributes:
        before: Tokens before the image.
        after: Tokens after it, up to the answer.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class EncodedPage:
    """One request before it is scheduled; L tokens.

    Attributes:
        tokens: int32 [L], the image as a run of placeholders.
        positions: int32 [3, L], time, height and width of each token.
        rope_delta: What a later token's position is more than its place in the sequence, on every axis;
            negative or zero.
        image_start: Place of the first placeholder.
        num_image_tokens: Placeholders.
        grid: Frames, rows and columns of patches.
        patches: uint8 [patches, channels * patch_size ** 2], contiguous; see `ImageSpec.patches`.
        image_digest: 16 bytes that name grid and patches.
    """

    tokens: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    rope_delta: int
    image_start: int
    num_image_tokens: int
    grid: Grid
    patches: npt.NDArray[np.uint8]
    image_digest: bytes


def image_positions(
    num_before: int, grid: Grid, merge_size: int, num_after: int
) -> tuple[npt.NDArray[np.int32], int]:
    """M-RoPE positions of a sequence with one image, as ``get_rope_index`` of both families has them.

    Text counts up on all three axes; an image spreads over frames, rows and columns from where it starts;
    text after it goes on from the longer side of the image.

    Args:
        num_before: Tokens before the image.
        grid: Frames, rows and columns of patches.
        merge_size: Patches along each side of a token.
        num_after: Tokens after the image.

    Returns:
        int32 [3, tokens], and what a later token's position is more than its place in the sequence.
    """
    frames, rows, columns = grid[0], grid[1] // merge_size, grid[2] // merge_size
    count = frames * rows * columns
    length = num_before + count + num_after
    positions = np.empty((3, length), dtype=np.int32)
    positions[:, :num_before] = np.arange(num_before)
    image = np.indices((frames, rows, columns), dtype=np.int32).reshape(3, count)
    positions[:, num_before : num_before + count] = image + num_before
    positions[:, num_before + count :] = np.arange(num_after) + num_before + max(rows, columns)
    return positions, int(positions.max()) + 1 - length


@dataclass(frozen=True, slots=True)
class PageEncoder:
    """Turns pages into `EncodedPage`.

    Attributes:
        images: What happens to an image.
        prompts: Kind of page -> its instruction.
        image_token_id: Placeholder of one token of an image.
        max_positions: Most tokens of a sequence, its answer counted.
    """

    images: ImageSpec
    prompts: Mapping[str, PromptTokens]
    image_token_id: int
    max_positions: int

    def num_image_tokens(self, width: int, height: int) -> int:
        """Tokens that an image takes, from its size alone.

        Raises:
            PageSizeError: The image is too narrow.
        """
        return self.images.num_tokens(width, height)

    def num_tokens(self, width: int, height: int, kind: str | PromptTokens) -> int:
        """Length of a sequence up to its answer, from the size of the image alone.

        Raises:
            PageSizeError: The image is too narrow, or nothing of the context is left for an answer.
            RecipeError: No instruction for the kind.
        """
        prompt = self.prompt(kind)
        count = self.num_image_tokens(width, height) + len(prompt.before) + len(prompt.after)
        if count >= self.max_positions:
            raise PageSizeError(
                f"page ({width} x {height} pixels)",
                expected=f"fewer than {self.max_positions} tokens, the context of the model",
                given=count,
                fix="split the page, or lower its resolution",
            )
        return count

    def prompt(self, kind: str | PromptTokens) -> PromptTokens:
        """The instruction for a kind of page.

        Raises:
            RecipeError: No instruction for the kind.
        """
        if isinstance(kind, PromptTokens):
            return kind
        if kind not in self.prompts:
            expected = f"one of {', '.join(self.prompts)}"
            raise RecipeError("kind of page", expected=expected, given=kind, fix="correct the kind")
        return self.prompts[kind]

    def encode(self, image: Image.Image, kind: str | PromptTokens) -> EncodedPage:
        """Encodes one page.

        Args:
            image: The picture; other modes than RGB are converted.
            kind: ``line``, ``block`` or ``page``; or an instruction in tokens.

        Raises:
            PageSizeError: The image is too narrow, or nothing of the context is left for an answer.
            RecipeError: No instruction for the kind.
        """
        self.num_tokens(image.width, image.height, kind)
        prompt = self.prompt(kind)
        patches, grid = self.images.patches(image)
        count = grid[0] * grid[1] * grid[2] // self.images.merge_size**2
        tokens = self._tokens(prompt.before, count, prompt.after)
        positions, delta = image_positions(
            len(prompt.before), grid, self.images.merge_size, len(prompt.after)
        )
        return EncodedPage(
            tokens=tokens,
            positions=positions,
            rope_delta=delta,
            image_start=len(prompt.before),
            num_image_tokens=count,
            grid=grid,
            patches=patches,
            image_digest=self.images.digest(patches, grid),
        )

    def _tokens(self, before: Sequence[int], count: int, after: Sequence[int]) -> npt.NDArray[np.int32]:
        tokens = np.full(len(before) + count + len(after), self.image_token_id, dtype=np.int32)
        tokens[: len(before)] = before
        tokens[len(before) + count :] = after
        return tokens
