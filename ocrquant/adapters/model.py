"""From a Hugging Face folder to a document model in memory.

Knows how to load a folder and how to join what lies in it. Knows no quantization.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import torch
from transformers import AutoModelForImageTextToText, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from ocrquant.adapters.devices import resolve_device
from ocrquant.adapters.document import DocumentModel, Transcript
from ocrquant.adapters.encoding import Encoded, PageEncoder, PageInput
from ocrquant.adapters.families import FAMILIES
from ocrquant.adapters.generic import guess_family
from ocrquant.adapters.headers import model_folder, read_model_map
from ocrquant.adapters.images import open_images
from ocrquant.adapters.preparing import prepare_modules
from ocrquant.adapters.residency import Residency, load_in_parts
from ocrquant.adapters.structure import ModelMap
from ocrquant.errors import ModelError
from ocrquant.json_files import read_json
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
    family = FAMILIES.get(model_map.architecture)
    if family is None:
        family = guess_family(read_json(folder / "config.json"), model_map.tensors, folder)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        images = open_images(family, folder, tokenizer, model.config)
    except (OSError, ValueError) as error:
        fix = "copy tokenizer and image processor there"
        raise ModelError(
            folder, expected="a tokenizer and an image processor", given=error, fix=fix
        ) from error
    template = "" if tokenizer.chat_template else family.template
    if not tokenizer.chat_template and not template:
        fix = "copy chat_template.jinja there"
        raise ModelError(folder, expected="a chat template", given="none", fix=fix)
    stop_ids = _stop_ids(model, tokenizer)
    end = tokenizer.eos_token_id if tokenizer.eos_token_id in stop_ids else stop_ids[0]
    encoder = PageEncoder(
        tokenizer,
        images,
        prompts_for(tokenizer.get_vocab(), prompts, model_type=str(model.config.model_type)),
        image_token_id=int(model.config.image_token_id),
        end_token_id=int(end),
        max_positions=model_map.max_positions,
        dtype=model.dtype,
        grid_positions=family.grid_positions,
        template=template,
    )
    document = DocumentModel(
        model.eval().requires_grad_(False), tokenizer, model_map, folder, encoder, stop_ids, residency
    )
    prepare_modules(model, model_map, None if residency is None else residency.device)
    return document


def load_model(
    path: str | Path,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.bfloat16,
    *,
    prompts: Mapping[str, str] | None = None,
    allow_remote_code: bool = False,
    allow_generic: bool = False,
    residency: Literal["whole", "block"] = "whole",
) -> DocumentModel:
    """Loads an unquantized document model.

    Args:
        path: Hugging Face folder, or the name of a shipped model.
        device: ``cpu``, ``cuda``, ``cuda:N`` or ``auto``.
        dtype: Of weights and activations.
        prompts: Instructions of the recipe for some kinds of page.
        allow_remote_code: Run Python files of the folder.
        allow_generic: Guess the structure of an architecture that is not known.
        residency: ``block`` leaves the weights on the disk until a part of the model is used; results are
            the same bits.

    Raises:
        ModelError: See `read_model_map`; also tensors that the model does not find in the folder.
        AlreadyQuantizedError: The weights are quantized.
        DeviceError: There is no such device.
    """
    place = resolve_device(str(device))
    folder = model_folder(path)
    model_map = read_model_map(folder, allow_remote_code, allow_generic=allow_generic)
    if residency == "block":
        parted, loader = load_in_parts(folder, model_map, place, dtype, allow_remote_code=allow_remote_code)
        return open_model(parted, model_map, folder, prompts=prompts, residency=loader)
    with _no_progress_bar():
        model, report = AutoModelForImageTextToText.from_pretrained(
            folder,
            dtype=dtype,
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
