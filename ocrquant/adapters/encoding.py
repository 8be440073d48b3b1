"""From pages to the tensors of a forward pass, with masks that say what each position is.

Knows the layout of a sequence (prompt, one image, prompt, answer, end), M-RoPE positions and padding. Knows
no weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import PreTrainedTokenizerBase
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from ocrquant.errors import ModelError, PageSizeError

__all__ = ["Encoded", "PageEncoder", "PageInput"]

IGNORE = -100
"""Label of a position that is not judged, as torch's cross entropy expects it."""


@dataclass(frozen=True, slots=True)
class PageInput:
    """One page for the model.

    Attributes:
        image: The picture; other modes than RGB are converted.
        kind: ``line``, ``block`` or ``page``: chooses the prompt.
        text: The answer for teacher forcing; None for transcription.
        id: Name for error messages.
    """

    image: Image.Image
    kind: str
    text: str | None = None
    id: str = ""

    @property
    def label(self) -> str:
        """The page in words."""
        return f"{self.id or self.kind} ({self.image.width} x {self.image.height} pixels)"


@dataclass(frozen=True, slots=True)
class Encoded:
    """A batch of B sequences, T tokens with padding.

    Attributes:
        input_ids: int64 [B, T].
        position_ids: int64 [3, B, T], M-RoPE positions in time, height and width; 0 at padding.
        valid: bool [B, T], false at padding.
        image_mask: bool [B, T], tokens that stand for the image.
        answer_mask: bool [B, T], positions whose prediction of the *next* token is judged: the last token of
            the prompt and all of the answer; the end token is predicted but predicts nothing.
        pixel_values: [N, C], patches of all images in the dtype of the model.
        image_grid_thw: int64 [B, 3], patches along time, height and width of each image.
        padding_side: ``right`` for teacher forcing, ``left`` for generation.
        inputs_embeds: [B, T, hidden], input of the decoder with the image features in place; None until
            `DocumentModel.embed` has computed them.
    """

    input_ids: Tensor
    position_ids: Tensor
    valid: Tensor
    image_mask: Tensor
    answer_mask: Tensor
    pixel_values: Tensor
    image_grid_thw: Tensor
    padding_side: Literal["left", "right"]
    inputs_embeds: Tensor | None = None

    def forward_inputs(self) -> dict[str, Tensor]:
        """Keyword arguments for the forward pass of the Hugging Face model.

        Padding on the right needs no attention mask: the decoder is causal, so that it reaches no real
        position. Padding on the left does, also for the recurrent layers, whose state must still be zero at
        the first token.
        """
        if self.inputs_embeds is not None:
            inputs = {"inputs_embeds": self.inputs_embeds}
        else:
            inputs = {
                "input_ids": self.input_ids,
                "mm_token_type_ids": self.image_mask.int(),
                "pixel_values": self.pixel_values,
                "image_grid_thw": self.image_grid_thw,
            }
        inputs["position_ids"] = self.position_ids
        if self.padding_side == "left" and not bool(self.valid.all()):
            inputs["attention_mask"] = self.valid.long()
        return inputs

    @property
    def labels(self) -> Tensor:
        """int64 [B, T]: the next token where `answer_mask` is set, else -100."""
        following = torch.roll(self.input_ids, -1, dims=1)
        return torch.where(self.answer_mask, following, torch.full_like(following, IGNORE))

    @property
    def num_answer_tokens(self) -> Tensor:
        """int64 [B]: judged predictions of each row."""
        return self.answer_mask.sum(1)

    def to(self, device: torch.device) -> Encoded:
        """The same batch on another device."""
        moved: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            moved[field.name] = value.to(device) if isinstance(value, Tensor) else value
        return Encoded(**moved)


@dataclass(frozen=True, slots=True)
class _Row:
    """One sequence before padding: tokens before the image, its grid, tokens after it, the answer."""

    before: Sequence[int]
    grid: tuple[int, int]
    after: Sequence[int]
    answer: Sequence[int]

    @property
    def answer_start(self) -> int:
        return len(self.before) + self.grid[0] * self.grid[1] + len(self.after)

    @property
    def length(self) -> int:
        return self.answer_start + len(self.answer)

    def positions(self) -> np.ndarray:
        """int64 [3, length]: text counts up in all three, an image spreads over a grid."""
        (rows, columns), start = self.grid, len(self.before)
        count = rows * columns
        positions = np.empty((3, self.length), dtype=np.int64)
        positions[:, :start] = np.arange(start)
        row, column = np.divmod(np.arange(count), columns)
        positions[:, start : start + count] = np.stack([np.zeros_like(row), row, column]) + start
        positions[:, start + count :] = np.arange(self.length - start - count) + start + max(rows, columns)
        return positions


class PageEncoder:
    """Turns pages into `Encoded` batches.

    Args:
        tokenizer: Of the model folder, with its chat template.
        image_processor: Of the model folder.
        prompts: Kind of page -> instruction.
        image_token_id: Token that stands for one merged patch of the image.
        end_token_id: Token that ends an answer.
        max_positions: Longest sequence of the decoder.
        dtype: Of the pixels.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        image_processor: Qwen2VLImageProcessorPil,
        prompts: Mapping[str, str],
        *,
        image_token_id: int,
        end_token_id: int,
        max_positions: int,
        dtype: torch.dtype,
    ) -> None:
        self.tokenizer = tokenizer
        self.image_processor = image_processor
        self.image_token_id = image_token_id
        self.end_token_id = end_token_id
        self.max_positions = max_positions
        self.dtype = dtype
        pad = tokenizer.pad_token_id
        self.pad_token_id = int(end_token_id if pad is None else pad)
        self.prompt_ids = {kind: self._prompt_ids(prompt) for kind, prompt in prompts.items()}

    def _prompt_ids(self, prompt: str) -> tuple[list[int], list[int]]:
        """Tokens before and after the image of a prompt in the chat template, up to the answer."""
        content = [{"type": "image"}, {"type": "text", "text": prompt}]
        # A template of a thinking model then closes the thought before the answer; others ignore the
        # argument.
        text = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": content}],
            add_generation_prompt=True,
            tokenize=False,
            enable_thinking=False,
        )
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        if ids.count(self.image_token_id) != 1:
            raise ModelError(
                "chat template",
                expected=f"one image token (id {self.image_token_id}) for a message with one image",
                given=ids.count(self.image_token_id),
                fix="take the chat template of the model's authors",
            )
        place = ids.index(self.image_token_id)
        return ids[:place], ids[place + 1 :]

    def answer_ids(self, text: str) -> list[int]:
        """Tokens of an answer with the end token; control tokens spelt out in the text stay ordinary text."""
        ids = self.tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        return [*ids, self.end_token_id]

    def num_image_tokens(self, image: Image.Image) -> int:
        """Tokens that an image takes, from its size alone."""
        patches = self.image_processor.get_number_of_image_patches(image.height, image.width, {})
        return int(patches) // int(self.image_processor.merge_size) ** 2

    def num_prompt_tokens(self, page: PageInput) -> int:
        """Length of the sequence up to the answer, from the size of the image alone.

        Raises:
            PageSizeError: The image is too narrow for the image processor, or the prompt exceeds the context.
        """
        try:
            image = self.num_image_tokens(page.image)
        except ValueError as error:
            raise PageSizeError(f"page {page.label}", given=error, fix="crop the page") from error
        count = image + sum(map(len, self.prompt_ids[page.kind]))
        self._check_length(page, count, count + 1)
        return count

    def _check_length(self, page: PageInput, prompt: int, total: int) -> None:
        if total > self.max_positions:
            raise PageSizeError(
                f"page {page.label}",
                expected=f"at most {self.max_positions} tokens, the context of the model",
                given=f"{total} ({prompt} of the prompt with its image)",
                fix="split the page, or lower its resolution",
            )

    def encode(self, pages: Sequence[PageInput], *, padding_side: Literal["left", "right"]) -> Encoded:
        """Encodes a batch on the CPU; a page without a text gets no answer.

        Raises:
            PageSizeError: A sequence exceeds the context of the model.
        """
        for page in pages:
            self.num_prompt_tokens(page)
        images = [page.image.convert("RGB") for page in pages]
        vision: Any = self.image_processor(images=images, return_tensors="pt")
        grid: Tensor = vision["image_grid_thw"]
        merge = int(self.image_processor.merge_size)
        rows = []
        for page, (_, height, width) in zip(pages, grid.tolist(), strict=True):
            answer = [] if page.text is None else self.answer_ids(page.text)
            before, after = self.prompt_ids[page.kind]
            row = _Row(before, (height // merge, width // merge), after, answer)
            self._check_length(page, row.answer_start, row.length)
            rows.append(row)
        return self._pad(rows, vision["pixel_values"].to(self.dtype), grid, padding_side)

    def _pad(
        self, rows: list[_Row], pixels: Tensor, grid: Tensor, padding_side: Literal["left", "right"]
    ) -> Encoded:
        size, length = len(rows), max(row.length for row in rows)
        ids = np.full((size, length), self.pad_token_id, dtype=np.int64)
        positions = np.zeros((3, size, length), dtype=np.int64)
        valid, image, answer = (np.zeros((size, length), dtype=bool) for _ in range(3))
        for i, row in enumerate(rows):
            first = length - row.length if padding_side == "left" else 0
            inside = slice(first, first + row.length)
            count = row.grid[0] * row.grid[1]
            ids[i, inside] = [*row.before, *[self.image_token_id] * count, *row.after, *row.answer]
            positions[:, i, inside] = row.positions()
            valid[i, inside] = True
            image[i, first + len(row.before) : first + len(row.before) + count] = True
            answer[i, first + row.answer_start - 1 : first + row.length - 1] = bool(row.answer)
        return Encoded(
            input_ids=torch.from_numpy(ids),
            position_ids=torch.from_numpy(positions),
            valid=torch.from_numpy(valid),
            image_mask=torch.from_numpy(image),
            answer_mask=torch.from_numpy(answer),
            pixel_values=pixels,
            image_grid_thw=grid,
            padding_side=padding_side,
        )
