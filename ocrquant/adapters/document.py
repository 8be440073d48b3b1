"""A document model in memory: encode pages, teacher-forced logits, transcription.

Knows how to reach modules by the names of a `ModelMap`. Knows neither how a model is loaded nor quantization.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ocrquant.adapters.decoding import greedy
from ocrquant.adapters.deepstack import DEEPSTACK
from ocrquant.adapters.encoding import Encoded, PageEncoder, PageInput
from ocrquant.adapters.preparing import decoder_of
from ocrquant.adapters.residency import Residency
from ocrquant.adapters.structure import ModelMap
from ocrquant.errors import DeviceError, ModelError

__all__ = ["DocumentModel", "Transcript"]

_DECODER_INPUTS = ("inputs_embeds", DEEPSTACK)
"""What a decoder takes of tokens and images."""


class _EnoughError(Exception):
    """Ends a forward pass before the decoder."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """What the model read.

    Attributes:
        text: The answer, control tokens left out.
        num_tokens: Tokens generated, the end token counted.
        finished: Whether the model ended by itself; false at the token limit and in a loop that was cut.
    """

    text: str
    num_tokens: int
    finished: bool


@dataclass(frozen=True, slots=True)
class DocumentModel:
    """A model with what it takes to show it pages.

    Attributes:
        model: Hugging Face model in eval mode; its parameters ask for no gradient.
        tokenizer: Of the folder.
        map: Structure of the model.
        folder: Where it was loaded from.
        encoder: Pages to tensors.
        stop_ids: Tokens that end an answer.
        residency: What loads the weights of a model that is in memory part by part; None where all of it is.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    map: ModelMap
    folder: Path
    encoder: PageEncoder
    stop_ids: tuple[int, ...]
    residency: Residency | None = None

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return torch.device(self.model.device) if self.residency is None else self.residency.device

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        dtype: torch.dtype = self.model.dtype
        return dtype

    @property
    def decoder(self) -> nn.Module:
        """Embedding, decoder layers and final norm."""
        return decoder_of(self.model, self.map)

    def module(self, name: str) -> nn.Module:
        """The module of a name in `map`.

        Raises:
            ModelError: The loaded model has no such module.
        """
        try:
            module: nn.Module = self.model.get_submodule(name)
        except AttributeError as error:
            fix = "update transformers, or report the model"
            raise ModelError(name, expected="a module of the model", given="none", fix=fix) from error
        return module

    def linear(self, name: str) -> nn.Linear:
        """The linear layer of a name in `map`.

        Raises:
            ModelError: There is no such module, or it is of another class.
        """
        module = self.module(name)
        if not isinstance(module, nn.Linear):
            raise ModelError(
                name, expected="a Linear", given=type(module).__name__, fix="restore the module first"
            )
        return module

    def weight(self, name: str) -> Tensor:
        """The weight of a linear or router [out, in] or a norm [in] of `map`, wherever it is at the moment.

        Raises:
            ModelError: There is no such module, or it has no weight.
        """
        weight = getattr(self.module(name), "weight", None)
        if not isinstance(weight, Tensor):
            raise ModelError(
                name, expected="a weight", given=type(weight).__name__, fix="restore the module first"
            )
        return weight.detach() if self.residency is None else self.residency.value(weight)

    @contextmanager
    def resident_block(self, index: int) -> Iterator[nn.Module]:
        """A decoder block with its weights in memory for the length of a ``with`` block.

        Whoever runs a block, or part of one, does so inside: a forward pass alone would load and free the
        weights by itself, but a backward pass after it, or a second pass, needs them to stay.
        """
        name = self.map.module_path(f"{self.map.block_prefix}.{index}")
        if self.residency is None:
            yield self.module(name)
        else:
            with self.residency.resident(name) as block:
                yield block

    def encode(self, pages: Sequence[PageInput]) -> Encoded:
        """Pages with their answers, padded on the right, on the device of the model; see `Encoded`.

        Raises:
            PageSizeError: A page with its answer exceeds the context of the model.
        """
        return self.encoder.encode(pages, padding_side="right").to(self.device)

    def encode_prompts(self, pages: Sequence[PageInput]) -> Encoded:
        """Pages without answers, padded on the left, ready for generation, on the device of the model.

        Raises:
            PageSizeError: A page exceeds the context of the model.
        """
        asked = [PageInput(page.image, page.kind, None, page.id) for page in pages]
        return self.encoder.encode(asked, padding_side="left").to(self.device)

    @torch.no_grad()
    def embed(self, encoded: Encoded) -> Encoded:
        """The batch with the input of the decoder worked out, for passes that differ only behind it.

        The vision encoder stays as it is whatever the decoder's precision, so that scores over many plans
        need it once. `logits` of the result are the same bits.
        """
        found: dict[str, Any] = {}

        def note(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            found.update({name: keywords[name] for name in _DECODER_INPUTS if name in keywords})
            raise _EnoughError

        handle = self.decoder.register_forward_pre_hook(note, with_kwargs=True)
        try:
            with suppress(_EnoughError):
                self.logits(encoded)
        finally:
            handle.remove()
        return replace(encoded, embedded=found)

    def logits(self, encoded: Encoded) -> Tensor:
        """Logits [B, T, vocabulary] in the dtype of the model.

        Gradients are recorded as the caller's torch settings say; the parameters themselves ask for none.
        """
        inputs = encoded.forward_inputs()
        for name in encoded.vision.keys() & inputs.keys():
            # Weights may be in float32 for a while; the pixels stay what they were rounded to.
            if inputs[name].is_floating_point():
                inputs[name] = inputs[name].to(self.model.dtype)
        logits: Tensor = self.model(**inputs, use_cache=False).logits
        return logits

    def plan_batches(self, pages: Sequence[PageInput], batch_size: int) -> list[list[int]]:
        """Indices of `pages` in batches of similar length, shortest first.

        A batch is fixed by all pages, not by those still to do: a stage that goes on after a kill and skips
        whole batches gets the same numbers.
        """
        lengths = [self.encoder.num_prompt_tokens(page) for page in pages]
        order = sorted(range(len(pages)), key=lambda i: (lengths[i], i))
        return [order[first : first + batch_size] for first in range(0, len(order), batch_size)]

    def transcribe(
        self, pages: Sequence[PageInput], max_new_tokens: int, batch_size: int, *, stop_at_loop: bool = False
    ) -> list[Transcript]:
        """Greedy transcripts in the order of `pages`; see `transcribe_batches`."""
        found = dict(self.transcribe_batches(pages, max_new_tokens, batch_size, stop_at_loop=stop_at_loop))
        return [found[i] for i in range(len(pages))]

    def transcribe_batches(
        self, pages: Sequence[PageInput], max_new_tokens: int, batch_size: int, *, stop_at_loop: bool = False
    ) -> Iterator[tuple[int, Transcript]]:
        """Index of a page and its transcript, batch by batch.

        Args:
            pages: What to read; texts are not looked at.
            max_new_tokens: Longest answer; the context of the model may end it earlier.
            batch_size: Pages at once.
            stop_at_loop: End a row that repeats one phrase.

        Raises:
            DeviceError: The model is in memory part by part: each token would read all of it.
            PageSizeError: A page exceeds the context of the model.
        """
        if self.residency is not None:
            raise DeviceError(
                f"transcription with {self.folder}",
                expected="the whole model in memory",
                given="one block at a time",
                fix="give the pages a truth, or set model.residency to whole",
            )
        for batch in self.plan_batches(pages, batch_size):
            encoded = self.encode_prompts([pages[i] for i in batch])
            lengths = encoded.valid.sum(1).tolist()
            limits = [min(max_new_tokens, self.encoder.max_positions - length) for length in lengths]
            answers = greedy(
                self.model, encoded, stop_ids=self.stop_ids, limits=limits, stop_at_loop=stop_at_loop
            )
            for i, answer in zip(batch, answers, strict=True):
                text = self.tokenizer.decode(answer.ids, skip_special_tokens=True)
                yield i, Transcript(str(text), answer.num_tokens, answer.finished)
