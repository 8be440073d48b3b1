"""What a checkpoint folder says of text and pages: instructions to tokens, pages to requests, tokens to text.

Knows tokenizer, chat template, image settings and which tokens end an answer. Knows no weights. What encodes
pages (``Processor.encoder``) pickles and loads no torch, for worker processes; the tokenizer stays here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

from ocrquant.errors import ModelError
from ocrquant.json_files import read_json
from ocrquant.models.processing.images import image_spec
from ocrquant.models.processing.pages import EncodedPage, PageEncoder, PromptTokens
from ocrquant.prompts import prompts_for

__all__ = ["Processor", "open_processor"]


@dataclass(slots=True)
class Processor:
    """Pages and text of a model.

    Attributes:
        tokenizer: Of the folder, with its chat template.
        encoder: Encodes pages; may be sent to another process.
        eos_ids: Tokens that end an answer.
    """

    tokenizer: Any
    encoder: PageEncoder
    eos_ids: tuple[int, ...]
    _tokens: dict[str, PromptTokens] = field(default_factory=dict)

    def prompt(self, text: str) -> PromptTokens:
        """An instruction of the user's own, in the chat template.

        Raises:
            ModelError: The template does not put exactly one image into the message.
        """
        if text not in self._tokens:
            self._tokens[text] = _prompt_tokens(self.tokenizer, text, self.encoder.image_token_id)
        return self._tokens[text]

    def encode(self, image: Image.Image, kind: str | PromptTokens) -> EncodedPage:
        """One page; see `PageEncoder.encode`."""
        return self.encoder.encode(image, kind)

    def num_tokens(self, width: int, height: int, kind: str | PromptTokens) -> int:
        """Length of a sequence up to its answer; see `PageEncoder.num_tokens`."""
        return self.encoder.num_tokens(width, height, kind)

    def answer_ids(self, text: str) -> list[int]:
        """Tokens of an answer with the end token; control tokens spelt out in the text stay ordinary text."""
        ids = self.tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        own = self.tokenizer.eos_token_id
        return [*ids, own if own in self.eos_ids else self.eos_ids[0]]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of an answer, control tokens left out."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))


def open_processor(folder: Path, prompts: Mapping[str, str] | None = None) -> Processor:
    """Reads what a checkpoint folder says.

    Args:
        folder: With ``config.json``, tokenizer, chat template and image settings.
        prompts: Instructions for some kinds of page in place of the family's.

    Raises:
        ModelError: A file is missing or malformed, or the family is not supported.
        RecipeError: An instruction for a kind that does not exist.
    """
    config = read_json(folder / "config.json")
    model_type = str(config.get("model_type", ""))
    images = image_spec(model_type, *_image_settings(folder))
    _check_vision(folder, config, images.patch_size, images.merge_size)
    image_token_id = _whole(config, "image_token_id", folder)
    max_positions = _whole(_text_config(config, folder), "max_position_embeddings", folder)
    tokenizer = _tokenizer(folder)
    texts = prompts_for(tokenizer.get_vocab(), prompts, model_type=model_type)
    tokens = {text: _prompt_tokens(tokenizer, text, image_token_id) for text in set(texts.values())}
    encoder = PageEncoder(
        images=images,
        prompts={kind: tokens[text] for kind, text in texts.items()},
        image_token_id=image_token_id,
        max_positions=max_positions,
    )
    return Processor(tokenizer, encoder, _eos_ids(folder, config, tokenizer), tokens)


def _prompt_tokens(tokenizer: Any, prompt: str, image_token_id: int) -> PromptTokens:
    content = [{"type": "image"}, {"type": "text", "text": prompt}]
    # A template of a thinking model then closes the thought before the answer; others ignore the argument.
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": content}],
        add_generation_prompt=True,
        tokenize=False,
        enable_thinking=False,
    )
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    if ids.count(image_token_id) != 1:
        raise ModelError(
            "chat template",
            expected=f"one image token (id {image_token_id}) for a message with one image",
            given=ids.count(image_token_id),
            fix="take the chat template of the model's authors",
        )
    place = ids.index(image_token_id)
    return PromptTokens(tuple(ids[:place]), tuple(ids[place + 1 :]))


def _tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    # It reads config.json too, and lets out whatever it stumbles over there.
    except Exception as error:
        fix = "copy the files of the tokenizer there"
        raise ModelError(folder, expected="a tokenizer", given=error, fix=fix) from error
    if not tokenizer.chat_template:
        fix = "copy chat_template.jinja there"
        raise ModelError(folder, expected="a chat template", given="none", fix=fix)
    return tokenizer


def _image_settings(folder: Path) -> tuple[dict[str, Any], Path]:
    """Settings of the image processor and the file that has them."""
    own, joined = folder / "preprocessor_config.json", folder / "processor_config.json"
    if own.is_file():
        return read_json(own), own
    if joined.is_file():
        settings = read_json(joined).get("image_processor")
        if isinstance(settings, dict):
            return settings, joined
    fix = "copy the file of the model's authors there"
    raise ModelError(folder, expected=own.name, given="no such file", fix=fix)


def _check_vision(folder: Path, config: Mapping[str, Any], patch_size: int, merge_size: int) -> None:
    """Refuses settings that cut other patches than the tower reads."""
    vision = _section(config, "vision_config", folder)
    for key, given in (("patch_size", patch_size), ("spatial_merge_size", merge_size)):
        expected = vision.get(key, given)
        if expected != given:
            raise ModelError(
                f"{key} of the image processor in {folder}",
                expected=f"{expected}, as in config.json",
                given=given,
                fix="take config.json and preprocessor_config.json of the same model",
            )


def _eos_ids(folder: Path, config: Mapping[str, Any], tokenizer: Any) -> tuple[int, ...]:
    path = folder / "generation_config.json"
    generation = read_json(path) if path.is_file() else {}
    for found in (generation.get("eos_token_id"), _text_config(config, folder).get("eos_token_id")):
        if found is not None:
            return tuple(found) if isinstance(found, Iterable) else (int(found),)
    if tokenizer.eos_token_id is None:
        fix = "set eos_token_id in generation_config.json"
        raise ModelError(folder, expected="a token that ends an answer", given="none", fix=fix)
    return (int(tokenizer.eos_token_id),)


def _text_config(config: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    """Settings of the decoder: published files of PaddleOCR-VL have them at the top."""
    return {**config, **_section(config, "text_config", folder)}


def _section(config: Mapping[str, Any], key: str, folder: Path) -> Mapping[str, Any]:
    section = config.get(key) or {}
    if not isinstance(section, Mapping):
        fix = "fetch the file of the model's authors again"
        raise ModelError(folder / "config.json", expected=f"a section {key}", given=section, fix=fix)
    return section


def _whole(config: Mapping[str, Any], key: str, folder: Path) -> int:
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        given = "none" if value is None else value
        fix = "fetch the file of the model's authors again"
        raise ModelError(folder / "config.json", expected=f"a number {key}", given=given, fix=fix)
    return value
