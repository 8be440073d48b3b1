"""From pages to the tensors of a forward pass, with masks that say what each position is.

Knows the layout of a sequence (prompt, one image, prompt, answer, end), positions and padding. Knows neither
weights nor how an image becomes tokens.
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

from ocrquant.adapters.images import ImageReader, ImageTokens, Vision
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
        position_ids: int64 [3, B, T], M-RoPE positions in time, height and width, 0 at padding; or [B, T]
            of a family that counts tokens, where padding on the right goes on counting.
        valid: bool [B, T], false at padding.
        image_mask: bool [B, T], tokens that stand for the image.
        answer_mask: bool [B, T], positions whose prediction of the *next* token is judged: the last token of
            the prompt and all of the answer; the end token is predicted but predicts nothing.
        vision: What the model takes of the images by the names of its arguments, such as ``pixel_values``;
            floats are in the dtype of the model.
        padding_side: ``right`` for teacher forcing, ``left`` for generation.
        embedded: Input of the decoder in place of tokens and images: ``inputs_embeds`` [B, T, hidden] with
            the image features in place, and what else the decoder takes of the images; None until
            `DocumentModel.embed` has computed it.
    """

    input_ids: Tensor
    position_ids: Tensor
    valid: Tensor
    image_mask: Tensor
    answer_mask: Tensor
    vision: Mapping[str, Tensor]
    padding_side: Literal["left", "right"]
    embedded: Mapping[str, Any] | None = None

    def forward_inputs(self) -> dict[str, Any]:
        """Keyword arguments for the forward pass of the Hugging Face model.

        Padding on the right needs no attention mask: the decoder is causal, so that it reaches no real
        position. Padding on the left does, also for the recurrent layers, whose state must still be zero at
        the first token.
        """
        inputs: dict[str, Any]
        if self.embedded is not None:
            inputs = dict(self.embedded)
        else:
            inputs = {"input_ids": self.input_ids, **self.vision}
            if self.position_ids.ndim == 3:
                inputs["mm_token_type_ids"] = self.image_mask.int()
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
        return Encoded(**{field.name: _moved(getattr(self, field.name), device) for field in fields(self)})


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {name: _moved(item, device) for name, item in value.items()}
    return type(value)(_moved(item, device) for item in value) if isinstance(value, list | tuple) else value


@dataclass(frozen=True, slots=True)
class _Row:
    """One sequence before padding: tokens before the image, those that stand for it, after it, the answer."""

    before: Sequence[int]
    image: ImageTokens
    after: Sequence[int]
    answer: Sequence[int]

    @property
    def ids(self) -> list[int]:
        return [*self.before, *self.image.ids, *self.after, *self.answer]

    @property
    def answer_start(self) -> int:
        return len(self.before) + len(self.image.ids) + len(self.after)

    @property
    def length(self) -> int:
        return self.answer_start + len(self.answer)

    def positions(self) -> np.ndarray:
        """int64 [3, length]: text counts up in all three, an image spreads over a grid."""
        (rows, columns), start = self.image.grid, len(self.before)
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
        images: Reads images of the family.
        prompts: Kind of page -> instruction.
        image_token_id: Token that stands for a feature of the image.
        end_token_id: Token that ends an answer.
        max_positions: Longest sequence of the decoder.
        dtype: Of the pixels.
        grid_positions: Whether positions follow the grid of the image (M-RoPE).
        template: Prompt with ``{image}`` and ``{prompt}``, in place of the chat template.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        images: ImageReader,
        prompts: Mapping[str, str],
        *,
        image_token_id: int,
        end_token_id: int,
        max_positions: int,
        dtype: torch.dtype,
        grid_positions: bool = True,
        template: str = "",
    ) -> None:
        self.tokenizer = tokenizer
        self.images = images
        self.grid_positions = grid_positions
        self.template = template
        self.image_token_id = image_token_id
        self.end_token_id = end_token_id
        self.max_positions = max_positions
        self.dtype = dtype
        pad = tokenizer.pad_token_id
        self.pad_token_id = int(end_token_id if pad is None else pad)
        self.prompt_ids = {kind: self._prompt_ids(prompt) for kind, prompt in prompts.items()}

    def _prompt_ids(self, prompt: str) -> tuple[list[int], list[int]]:
        """Tokens before and after the image of a prompt in the chat template, up to the answer."""
        if self.template:
            image = str(self.tokenizer.convert_ids_to_tokens(self.image_token_id))
            text = self.template.format(image=image, prompt=prompt)
        else:
            content = [{"type": "image"}, {"type": "text", "text": prompt}]
            # A template of a thinking model then closes the thought before the answer; others ignore the
            # argument.
            text = self.tokenizer.apply_chat_template(
                [{"role": "user", "content": content}],
                add_generation_prompt=True,
                tokenize=False,
                enable_thinking=False,
            )
        # A chat template spells out what begins a sequence; a bare prompt leaves it to the tokenizer.
        ids: list[int] = self.tokenizer(text, add_special_tokens=bool(self.template))["input_ids"]
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
        return self.images.num_tokens(image.width, image.height)

    def num_prompt_tokens(self, page: PageInput) -> int:
        """Length of the sequence up to the answer, from the size of the image alone.

        Raises:
            PageSizeError: The image is too narrow for the image processor, or the prompt exceeds the context.
        """
        return self._prompt_tokens(page.image.width, page.image.height, page.kind, page.label)

    def num_tokens(self, width: int, height: int, kind: str) -> int:
        """The same for an image of so many pixels.

        Raises:
            PageSizeError: See `num_prompt_tokens`.
        """
        return self._prompt_tokens(width, height, kind, f"({width} x {height} pixels)")

    def _prompt_tokens(self, width: int, height: int, kind: str, label: str) -> int:
        try:
            image = self.images.num_tokens(width, height)
        except ValueError as error:
            raise PageSizeError(f"page {label}", given=error, fix="crop the page") from error
        count = image + sum(map(len, self.prompt_ids[kind]))
        self._check_length(label, count, count + 1)
        return count

    def _check_length(self, label: str, prompt: int, total: int) -> None:
        if total > self.max_positions:
            raise PageSizeError(
                f"page {label}",
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
        vision, found = self.images.read([page.image.convert("RGB") for page in pages])
        rows = []
        for page, image in zip(pages, found, strict=True):
            answer = [] if page.text is None else self.answer_ids(page.text)
            before, after = self.prompt_ids[page.kind]
            row = _Row(before, image, after, answer)
            self._check_length(page.label, row.answer_start, row.length)
            rows.append(row)
        vision = {name: x.to(self.dtype) if x.is_floating_point() else x for name, x in vision.items()}
        return self._pad(rows, vision, padding_side)

    def _pad(self, rows: list[_Row], vision: Vision, padding_side: Literal["left", "right"]) -> Encoded:
        size, length = len(rows), max(row.length for row in rows)
        ids = np.full((size, length), self.pad_token_id, dtype=np.int64)
        positions = np.zeros((3, size, length), dtype=np.int64)
        counted = np.tile(np.arange(length), (size, 1))
        valid, image, answer = (np.zeros((size, length), dtype=bool) for _ in range(3))
        for i, row in enumerate(rows):
            first = length - row.length if padding_side == "left" else 0
            inside = slice(first, first + row.length)
            ids[i, inside] = row.ids
            positions[:, i, inside] = row.positions() if self.grid_positions else 0
            counted[i] = np.maximum(counted[i] - first, 0)
            valid[i, inside] = True
            start = first + len(row.before)
            image[i, start : start + len(row.image.ids)] = np.array(row.image.ids) == self.image_token_id
            answer[i, first + row.answer_start - 1 : first + row.length - 1] = bool(row.answer)
        return Encoded(
            input_ids=torch.from_numpy(ids),
            position_ids=torch.from_numpy(positions if self.grid_positions else counted),
            valid=torch.from_numpy(valid),
            image_mask=torch.from_numpy(image),
            answer_mask=torch.from_numpy(answer),
            vision=vision,
            padding_side=padding_side,
        )
