"""Towers with random weights, ours and that of transformers on the same tensors."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from ocrquant.models.vision import VisionTower, paddleocr_vl_tower, qwen3_5_tower
from ocrquant.models.weights import MappingSource, WeightReader

HIDDEN = 24
FAMILIES = ("qwen3_5", "paddleocr_vl")
DEPTH, WIDTH, HEADS, INNER, PATCH = 3, 48, 3, 80, 4


@dataclass(frozen=True)
class Pair:
    """Our tower, and the modules of transformers that it stands for."""

    family: str
    tower: VisionTower
    theirs: nn.Module
    dtype: torch.dtype

    def pixels(self, grids: list[tuple[int, int, int]], seed: int = 0) -> Tensor:
        """Random patches for all grids."""
        count = sum(frames * rows * columns for frames, rows, columns in grids)
        generator = torch.Generator().manual_seed(seed)
        values = self.tower.encoder.patch_embedding.in_features
        return torch.randn(count, values, generator=generator, dtype=torch.float64).to(self.dtype)

    def expected(self, pixels: Tensor, grids: list[tuple[int, int, int]]) -> Tensor:
        """What transformers makes of them."""
        shape = (-1, 3, PATCH, PATCH) if self.family == "paddleocr_vl" else pixels.shape
        with torch.no_grad():
            found = self.theirs.get_image_features(pixels.reshape(shape), torch.tensor(grids))
        return torch.cat(list(found.pooler_output))


def randomize(model: nn.Module) -> None:
    """Weights of a size that keeps every part of a tower visible in its result."""
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        scale = parameter[0].numel() ** -0.5 if parameter.ndim > 1 else 0.2
        base = 1.0 if "norm" in name and name.endswith("weight") else 0.0
        scale = 1.0 if "pos" in name and parameter.ndim == 2 else scale
        parameter.data = (base + scale * noise).to(parameter.dtype)


def their_qwen() -> nn.Module:
    from transformers.models.qwen3_5 import Qwen3_5Config, Qwen3_5Model

    vision = {
        "depth": DEPTH,
        "hidden_size": WIDTH,
        "num_heads": HEADS,
        "intermediate_size": INNER,
        "patch_size": PATCH,
        "num_position_embeddings": 49,
        "out_hidden_size": HIDDEN,
    }
    text = {"num_hidden_layers": 0, "hidden_size": HIDDEN, "vocab_size": 16, "layer_types": []}
    return Qwen3_5Model(Qwen3_5Config(text_config=text, vision_config=vision))


def their_paddle() -> nn.Module:
    from transformers.models.paddleocr_vl import PaddleOCRVLConfig
    from transformers.models.paddleocr_vl.modeling_paddleocr_vl import PaddleOCRVLModel

    vision = {
        "num_hidden_layers": DEPTH,
        "hidden_size": WIDTH,
        "num_attention_heads": HEADS,
        "intermediate_size": INNER,
        "patch_size": PATCH,
        "image_size": 7 * PATCH,
    }
    text = {
        "num_hidden_layers": 0,
        "hidden_size": HIDDEN,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 12,
        "vocab_size": 16,
        "intermediate_size": 8,
        "pad_token_id": 0,
    }
    return PaddleOCRVLModel(PaddleOCRVLConfig(text_config=text, vision_config=vision))


def make_pair(family: str, dtype: torch.dtype) -> Pair:
    """Both towers on the same random weights."""
    theirs = (their_qwen() if family == "qwen3_5" else their_paddle()).eval()
    randomize(theirs)
    theirs.to(dtype)
    tensors = {
        f"model.{name}": tensor
        for name, tensor in theirs.state_dict().items()
        if name.startswith(("visual.", "projector."))
    }
    reader = WeightReader(MappingSource(tensors), dtype, torch.device("cpu"))
    config = {"vision_config": theirs.config.vision_config.to_dict()}
    tower = (
        qwen3_5_tower(config, reader) if family == "qwen3_5" else paddleocr_vl_tower(config, reader, HIDDEN)
    )
    reader.finish()
    return Pair(family, tower, theirs, dtype)


@pytest.fixture(scope="session", params=FAMILIES)
def pair64(request: pytest.FixtureRequest) -> Pair:
    """Both towers of a family in fp64."""
    return make_pair(request.param, torch.float64)


@pytest.fixture(scope="session", params=FAMILIES)
def pair32(request: pytest.FixtureRequest) -> Pair:
    """Both towers of a family in fp32."""
    return make_pair(request.param, torch.float32)
