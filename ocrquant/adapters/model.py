"""A loaded document model: encode pages, teacher-forced logits, transcription.

Knows how to load a Hugging Face folder and reach its modules by the names of its `ModelMap`. Knows no
quantization.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from transformers import AutoModelForImageTextToText, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.utils import logging as transformers_logging

from ocrquant.adapters.decoding import greedy
from ocrquant.adapters.devices import resolve_device
from ocrquant.adapters.encoding import Encoded, PageEncoder, PageInput
from ocrquant.adapters.headers import model_folder, read_model_map
from ocrquant.adapters.qwen3_5_modules import use_lean_modules
from ocrquant.adapters.residency import Residency, load_in_parts
from ocrquant.adapters.structure import ModelMap
from ocrquant.errors import DeviceError, ModelError
from ocrquant.prompts import prompts_for

__all__ = [
    "DocumentModel",
    "Encoded",
    "PageInput",
    "Transcript",
    "load_model",
    "open_model",
    "resolve_device",
]


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
        image_processor: Of the folder.
        map: Structure of the model.
        folder: Where it was loaded from.
        encoder: Pages to tensors.
        stop_ids: Tokens that end an answer.
        residency: What loads the weights of a model that is in memory part by part; None where all of it is.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    image_processor: Qwen2VLImageProcessorPil
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
        """The weight of a linear [out, in] or a norm [in] of `map`, wherever it is at the moment.

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
        name = f"{self.map.block_prefix}.{index}"
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
        embeds = self.model.get_input_embeddings()(encoded.input_ids)
        features = self.model.get_image_features(encoded.pixel_values, encoded.image_grid_thw).pooler_output
        image = torch.cat(list(features)).to(embeds.dtype)
        return replace(encoded, inputs_embeds=embeds.masked_scatter(encoded.image_mask.unsqueeze(-1), image))

    def logits(self, encoded: Encoded) -> Tensor:
        """Logits [B, T, vocabulary] in the dtype of the model.

        Gradients are recorded as the caller's torch settings say; the parameters themselves ask for none.
        """
        logits: Tensor = self.model(**encoded.forward_inputs(), use_cache=False).logits
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


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """Silences the bar that transformers draws while it loads, as it was before afterwards."""
    was_on = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_on:
            transformers_logging.enable_progress_bar()


def _stop_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    for found in (model.generation_config.eos_token_id, model.config.get_text_config().eos_token_id):
        if found is not None:
            return tuple(found) if isinstance(found, list | tuple) else (int(found),)
    if tokenizer.eos_token_id is None:
        fix = "set eos_token_id in generation_config.json"
        raise ModelError(model.name_or_path, expected="a token that ends an answer", given="none", fix=fix)
    return (int(tokenizer.eos_token_id),)


def open_model(
    model: PreTrainedModel,
    model_map: ModelMap,
    folder: Path,
    *,
    prompts: Mapping[str, str] | None = None,
    residency: Residency | None = None,
) -> DocumentModel:
    """Joins a loaded Hugging Face model with the tokenizer and image processor of a folder.

    Args:
        model: Loaded from `folder` or from a quantized copy of it.
        model_map: Structure of the unquantized model.
        folder: Folder with tokenizer, chat template and image processor.
        prompts: Instructions of the recipe for some kinds of page.
        residency: What loads its parts, where it is not in memory as a whole.

    Raises:
        ModelError: The folder has no usable tokenizer, chat template or image processor.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        image_processor = Qwen2VLImageProcessorPil.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        fix = "copy tokenizer and image processor there"
        raise ModelError(
            folder, expected="a tokenizer and an image processor", given=error, fix=fix
        ) from error
    if not tokenizer.chat_template:
        fix = "copy chat_template.jinja there"
        raise ModelError(folder, expected="a chat template", given="none", fix=fix)
    stop_ids = _stop_ids(model, tokenizer)
    end = tokenizer.eos_token_id if tokenizer.eos_token_id in stop_ids else stop_ids[0]
    encoder = PageEncoder(
        tokenizer,
        image_processor,
        prompts_for(tokenizer.get_vocab(), prompts),
        image_token_id=int(model.config.image_token_id),
        end_token_id=int(end),
        max_positions=model_map.max_positions,
        dtype=model.dtype,
    )
    use_lean_modules(model, None if residency is None else residency.device)
    return DocumentModel(
        model.eval().requires_grad_(False),
        tokenizer,
        image_processor,
        model_map,
        folder,
        encoder,
        stop_ids,
        residency,
    )


def load_model(
    path: str | Path,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.bfloat16,
    *,
    prompts: Mapping[str, str] | None = None,
    allow_remote_code: bool = False,
    residency: Literal["whole", "block"] = "whole",
) -> DocumentModel:
    """Loads an unquantized document model.

    Args:
        path: Hugging Face folder, or the name of a shipped model.
        device: ``cpu``, ``cuda``, ``cuda:N`` or ``auto``.
        dtype: Of weights and activations.
        prompts: Instructions of the recipe for some kinds of page.
        allow_remote_code: Run Python files of the folder.
        residency: ``block`` leaves the weights on the disk until a part of the model is used; results are
            the same bits.

    Raises:
        ModelError: See `read_model_map`; also tensors that the model does not find in the folder.
        AlreadyQuantizedError: The weights are quantized.
        DeviceError: There is no such device.
    """
    place = resolve_device(str(device))
    folder = model_folder(path)
    model_map = read_model_map(folder, allow_remote_code)
    if residency == "block":
        parted, loader = load_in_parts(folder, model_map, place, dtype, allow_remote_code=allow_remote_code)
        return open_model(parted, model_map, folder, prompts=prompts, residency=loader)
    with _no_progress_bar():
        model, report = AutoModelForImageTextToText.from_pretrained(
            folder,
            dtype=dtype,
            attn_implementation="sdpa",
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=allow_remote_code,
            output_loading_info=True,
        )
    if missing := sorted(report["missing_keys"]):
        raise ModelError(
            folder,
            expected=f"tensor {missing[0]}",
            given=f"{len(missing)} missing",
            fix="fetch the weights of the model again",
        )
    return open_model(model.to(place), model_map, folder, prompts=prompts)
