"""Tiny models with random weights, one a family, as folders that look like downloaded models."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken

from ocrquant.pico import tokenizer
from tests.families.tiny import QWEN3_5, TINY

__all__ = ["TINY", "make_folder"]


def stack_experts(folder: Path, *, turned: bool) -> None:
    """Stores the experts of each layer as one tensor; saving takes some apart and turns none."""
    file = folder / "model.safetensors"
    weights = load_file(file)
    experts = sorted({name.partition(".experts.")[0] for name in weights if ".experts." in name})
    for prefix in (f"{mlp}.experts" for mlp in experts):
        count = sum(name.startswith(f"{prefix}.") for name in weights) // 3
        if count:
            gates, ups, downs = (
                torch.stack([weights.pop(f"{prefix}.{i}.{part}_proj.weight") for i in range(count)])
                for part in ("gate", "up", "down")
            )
            weights |= {f"{prefix}.gate_up_proj": torch.cat([gates, ups], 1), f"{prefix}.down_proj": downs}
        if turned:
            for name in (f"{prefix}.gate_up_proj", f"{prefix}.down_proj"):
                weights[name] = weights[name].mT.contiguous()
    save_file(weights, file, metadata={"format": "pt"})


def make_folder(name: str, folder: Path, *, std: float = 0.15) -> Path:
    """Writes the tiny model of a family; weights are random with seed 0 and large enough to matter."""
    tiny = {**TINY, "qwen3_5": QWEN3_5}[name]
    words = tokenizer.build_tokenizer(tokenizer.alphabet([]))
    words.add_tokens([AddedToken(token, special=True, normalized=False) for token in tiny.tokens])
    if tiny.image is None:
        words.chat_template = None
    elif tiny.image != "<|image_pad|>":
        words.chat_template = tokenizer.CHAT_TEMPLATE.replace("<|image_pad|>", tiny.image)
    config = tiny.config(words.get_vocab())
    torch.manual_seed(0)
    model = getattr(transformers, tiny.architecture)(config).to(torch.bfloat16)
    for parameter in model.parameters():
        if parameter.ndim >= 2:
            torch.nn.init.normal_(parameter, std=std)
    model.generation_config.do_sample = False
    model.generation_config.eos_token_id = 1
    model.save_pretrained(folder)
    if tiny.experts != "apart":
        stack_experts(folder, turned=tiny.experts == "turned")
    words.save_pretrained(folder)
    tiny.images().save_pretrained(folder)
    return folder
