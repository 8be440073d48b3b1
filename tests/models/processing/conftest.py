"""Folders with tokenizer and image settings of both families, and what transformers makes of a page."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from ocrquant.adapters import model_folder
from ocrquant.models.processing import Processor, open_processor

PADDLE_TEMPLATE = """\
{{- "<|begin_of_sentence|>" -}}
{%- for message in messages -%}
{{- "User: " -}}
{%- for part in message["content"] -%}
{%- if part["type"] == "image" -%}{{ "<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>" }}{%- endif -%}
{%- endfor -%}
{%- for part in message["content"] -%}
{%- if part["type"] == "text" -%}{{ part["text"] }}{%- endif -%}
{%- endfor -%}
{{ "\\n" -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "Assistant: " -}}{%- endif -%}
"""
PADDLE_SPECIAL = [
    "<unk>",
    "<s>",
    "</s>",
    "<|begin_of_sentence|>",
    "<|IMAGE_START|>",
    "<|IMAGE_PLACEHOLDER|>",
    "<|IMAGE_END|>",
]


@dataclass(frozen=True)
class Theirs:
    """A family as transformers has it."""

    model_type: str
    image_processor: Any
    image_token: str
    rope_model: type
    merge_size: int

    def vision(self, image: Image.Image) -> Any:
        """Pixel values and grid."""
        return self.image_processor(images=[image], return_tensors="pt")

    def token_ids(self, tokenizer: Any, prompt: str, count: int) -> list[int]:
        """The conversation with the placeholder repeated as a text, then tokenized."""
        content = [{"type": "image"}, {"type": "text", "text": prompt}]
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
        )
        return tokenizer(text.replace(self.image_token, self.image_token * count))["input_ids"]

    def rope_index(self, ids: list[int], image_id: int, grid: torch.Tensor) -> tuple[torch.Tensor, int]:
        """Positions [3, L] and the delta."""
        tokens = torch.tensor([ids])
        config = SimpleNamespace(vision_config=SimpleNamespace(spatial_merge_size=self.merge_size))
        model = SimpleNamespace(config=config)
        model.get_vision_position_ids = self.rope_model.get_vision_position_ids.__get__(model)
        types = (tokens == image_id).int()
        positions, delta = self.rope_model.get_rope_index(model, tokens, types, grid)
        return positions[:, 0], int(delta)


def paddle_folder(folder: Path) -> Path:
    """Settings as the published checkpoint has them, a word tokenizer, a model of no size."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = [chr(code) for code in range(32, 127)] + ["\n"]
    vocabulary = {token: place for place, token in enumerate([*PADDLE_SPECIAL, *letters])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    words.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        extra_special_tokens={"image_token": "<|IMAGE_PLACEHOLDER|>"},
        additional_special_tokens=PADDLE_SPECIAL[3:],
        chat_template=PADDLE_TEMPLATE,
    )
    tokenizer.save_pretrained(folder)
    config = {
        "model_type": "paddleocr_vl",
        "architectures": ["PaddleOCRVLForConditionalGeneration"],
        "hidden_size": 16,
        "max_position_embeddings": 8192,
        "image_token_id": 5,
        "eos_token_id": 2,
        "vision_config": {"patch_size": 14, "spatial_merge_size": 2},
    }
    settings = {
        "do_convert_rgb": True,
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_processor_type": "PaddleOCRVLImageProcessor",
        "image_std": [0.5, 0.5, 0.5],
        "max_pixels": 2822400,
        "merge_size": 2,
        "min_pixels": 147384,
        "patch_size": 14,
        "resample": 3,
        "rescale_factor": 0.00392156862745098,
        "size": {"max_pixels": 2822400, "min_pixels": 147384},
        "temporal_patch_size": 1,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="session", params=["qwen3_5", "paddleocr_vl"])
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Theirs]:
    """Folder of a family, and the family as transformers has it."""
    from transformers.models.paddleocr_vl.image_processing_pil_paddleocr_vl import (
        PaddleOCRVLImageProcessorPil,
    )
    from transformers.models.paddleocr_vl.modeling_paddleocr_vl import PaddleOCRVLModel
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
    from transformers.models.qwen3_5 import Qwen3_5Model

    if request.param == "qwen3_5":
        folder = model_folder("pico")
        processor = Qwen2VLImageProcessorPil.from_pretrained(folder)
        return folder, Theirs(request.param, processor, "<|image_pad|>", Qwen3_5Model, 2)
    folder = paddle_folder(tmp_path_factory.mktemp("paddle"))
    processor = PaddleOCRVLImageProcessorPil.from_pretrained(folder)
    return folder, Theirs(request.param, processor, "<|IMAGE_PLACEHOLDER|>", PaddleOCRVLModel, 2)


@pytest.fixture(scope="session")
def theirs(family: tuple[Path, Theirs]) -> Theirs:
    """A family as transformers has it."""
    return family[1]


@pytest.fixture(scope="session")
def processor(family: tuple[Path, Theirs]) -> Processor:
    """Ours of the same folder."""
    return open_processor(family[0])


def noise(width: int, height: int, mode: str = "RGB") -> Image.Image:
    """A picture of random pixels."""
    shape = (height, width, *{"RGB": (3,), "L": (), "RGBA": (4,)}[mode])
    pixels = np.random.default_rng(width * 7919 + height).integers(0, 256, shape)
    return Image.fromarray(pixels.astype(np.uint8))
