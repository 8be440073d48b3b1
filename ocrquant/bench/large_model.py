"""A folder with a random vision-language model of Qwen3.5 shape, written one tensor at a time.

The decoder has the sizes of Qwen3.5-4B (32 layers, hidden 2560, vocabulary 248320, head tied to the
embedding), the vision encoder those of Qwen3-VL-4B; tokenizer and image processor are pico's. It reads
nothing sensible, but every tensor is where a trained model has it. Knows configurations and files.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

from ocrquant.bench.random_model import random_tensor
from ocrquant.checkpoint.layout import TensorSpec, plan_shards
from ocrquant.checkpoint.writer import write_shards
from ocrquant.pico import geometry, tokenizer

__all__ = ["SHAPES", "make_folder"]

_SHARD_BYTES = 2_000_000_000

SHAPES: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "qwen3.5-4b": (
        {
            "hidden_size": 2560,
            "intermediate_size": 9216,
            "num_hidden_layers": 32,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 32,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "vocab_size": 248320,
        },
        {"depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16},
    ),
    "small": (
        {
            "hidden_size": 256,
            "intermediate_size": 768,
            "num_hidden_layers": 8,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 64,
            "linear_value_head_dim": 64,
            "vocab_size": 16384,
        },
        {"depth": 2, "hidden_size": 96, "intermediate_size": 192, "num_heads": 3},
    ),
}
"""Sizes of decoder and vision encoder by name."""


def make_folder(folder: Path, shape: str, seed: int = 0) -> None:
    """Writes a model of a shape; every fourth layer has full attention.

    Args:
        folder: New folder.
        shape: One of `SHAPES`.
        seed: Of the weights.
    """
    text, vision = SHAPES[shape]
    words = tokenizer.build_tokenizer(tokenizer.alphabet([]))
    ids = {token: words.convert_tokens_to_ids(token) for token in tokenizer.SPECIAL}
    config: Qwen3_5Config = geometry.build_config(ids)
    kinds = [
        "full_attention" if layer % 4 == 3 else "linear_attention"
        for layer in range(text["num_hidden_layers"])
    ]
    base: Mapping[str, Any] = geometry.TEXT["rope_parameters"]  # type: ignore[assignment]  # one of the mappings
    sections = _sections(int(text["head_dim"] * base["partial_rotary_factor"]))
    rope = {**base, "mrope_section": sections}
    more = {"layer_types": kinds, "rope_parameters": rope, "tie_word_embeddings": True}
    for name, value in {**text, **more}.items():
        setattr(config.text_config, name, value)
    for name, value in {**vision, "out_hidden_size": text["hidden_size"]}.items():
        setattr(config.vision_config, name, value)
    config.tie_word_embeddings = True
    config.dtype = "bfloat16"
    config.architectures = ["Qwen3_5ForConditionalGeneration"]
    with torch.device("meta"):
        shapes = {n: t.shape for n, t in Qwen3_5ForConditionalGeneration(config).state_dict().items()}
    shapes.pop("lm_head.weight")
    generator = torch.Generator().manual_seed(seed)
    folder.mkdir(parents=True)
    config.save_pretrained(folder)
    words.save_pretrained(folder)
    geometry.build_image_processor().save_pretrained(folder)
    specs = [TensorSpec(name, "BF16", tuple(size)) for name, size in shapes.items()]
    write_shards(
        folder,
        plan_shards(specs, _SHARD_BYTES),
        lambda name: random_tensor(name, shapes[name], generator),
    )


def _sections(rotary_dim: int) -> list[int]:
    """Rotary frequencies by axis, about a third each."""
    side = rotary_dim // 6
    return [rotary_dim // 2 - 2 * side, side, side]
