"""Shared fixtures: a tiny random-weight Qwen3.5-VL folder that behaves like a downloaded model."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four decoder layers (three Gated DeltaNet, one full attention), hidden size 64, bf16, random weights,
    seed 0.

    Reads nothing sensible, but every tensor is where a trained model has it. Do not write into the folder.
    """
    import torch
    from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

    from ocrquant.pico import geometry, tokenizer

    folder = tmp_path_factory.mktemp("tiny") / "model"
    words = tokenizer.build_tokenizer(tokenizer.alphabet([]))
    ids = {token: words.convert_tokens_to_ids(token) for token in tokenizer.SPECIAL}
    config: Qwen3_5Config = geometry.build_config(ids)
    text = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "head_dim": 32,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "rope_parameters": {**geometry.TEXT["rope_parameters"], "mrope_section": [4, 2, 2]},
        "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    }
    vision = {"depth": 2, "hidden_size": 32, "intermediate_size": 72, "num_heads": 2, "out_hidden_size": 64}
    for name, value in text.items():
        setattr(config.text_config, name, value)
    for name, value in vision.items():
        setattr(config.vision_config, name, value)
    torch.manual_seed(0)
    model = Qwen3_5ForConditionalGeneration(config).to(torch.bfloat16)
    model.generation_config.do_sample = False
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    geometry.build_image_processor().save_pretrained(folder)
    return folder
