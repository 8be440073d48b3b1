"""The tower of the shipped model against transformers, on lines and blocks of text."""

from __future__ import annotations

import json

import pytest
import torch
from PIL import Image, ImageDraw
from safetensors.torch import load_file
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen3_5 import Qwen3_5Config, Qwen3_5Model

from ocrquant.adapters import model_folder
from ocrquant.kernels.extension import extension, missing_reason
from ocrquant.kernels.selection import choices
from ocrquant.models.processing import PixelTable, open_processor
from ocrquant.models.vision import qwen3_5_tower
from ocrquant.models.weights import MappingSource, WeightReader

FOLDER = model_folder("pico")
SIZES = [(220, 24), (180, 90), (23, 3), (220, 24)]
PREFIX = "model.visual."


@pytest.fixture(scope="module")
def tensors():
    stored = load_file(FOLDER / "model.safetensors")
    return {name: tensor for name, tensor in stored.items() if name.startswith(PREFIX)}


@pytest.fixture(scope="module")
def processor():
    return open_processor(FOLDER)


@pytest.fixture(scope="module")
def images():
    """Lines and a block of text in the built-in font."""
    made = []
    for index, size in enumerate(SIZES):
        image = Image.new("RGB", size, (250, 248, 240))
        text = "\n".join(f"{index} quick brown foxes 0123" for _ in range(1 + size[1] // 30))
        ImageDraw.Draw(image).text((3, 2), text, fill=(20, 20, 60))
        made.append(image)
    return made


def make_tower(tensors, dtype):
    reader = WeightReader(MappingSource(tensors), dtype, torch.device("cpu"))
    tower = qwen3_5_tower(json.loads((FOLDER / "config.json").read_text()), reader)
    reader.finish()
    return tower


def ours(tensors, processor, images, dtype):
    """Embeddings of all images in one call."""
    tower = make_tower(tensors, dtype)
    pages = [processor.encode(image, "line") for image in images]
    pixels = PixelTable(processor.encoder.images, dtype).pack([page.patches for page in pages])
    found = tower.encode(pixels, [page.grid for page in pages])
    assert found.shape[0] == sum(page.num_image_tokens for page in pages)
    return found


@torch.no_grad()
def theirs(tensors, images, dtype):
    config = Qwen3_5Config.from_pretrained(FOLDER)
    config.text_config.num_hidden_layers = 0
    model = Qwen3_5Model(config).to(dtype)
    model.visual.load_state_dict({name.removeprefix(PREFIX): tensor for name, tensor in tensors.items()})
    vision = Qwen2VLImageProcessorPil.from_pretrained(FOLDER)(images=images, return_tensors="pt")
    found = model.get_image_features(vision["pixel_values"], vision["image_grid_thw"])
    return torch.cat(list(found.pooler_output))


def test_equals_transformers_in_fp32(tensors, processor, images):
    found = ours(tensors, processor, images, torch.float32)
    expected = theirs(tensors, images, torch.float32)
    assert ((found - expected).norm(dim=1) / expected.norm(dim=1)).max() < 1e-5


def test_bf16_is_no_farther_from_fp32_than_transformers(tensors, processor, images):
    exact = theirs(tensors, images, torch.float32)
    found = (ours(tensors, processor, images, torch.bfloat16).float() - exact).norm()
    expected = (theirs(tensors, images, torch.bfloat16).float() - exact).norm()
    assert 0 < found < 1.2 * expected
    assert found < 0.02 * exact.norm()


@pytest.mark.skipif(extension() is None, reason=missing_reason() or "built")
def test_bits_of_an_image_do_not_depend_on_the_others(tensors, processor, images):
    together = ours(tensors, processor, images, torch.bfloat16)
    alone = [ours(tensors, processor, [image], torch.bfloat16) for image in images]
    assert torch.equal(together, torch.cat(alone))
    ops = ("linear", "layer_norm", "gelu", "vision_rope", "packed_attention")
    assert {choices()[op].implementation for op in ops} == {"native"}
    assert torch.equal(alone[0], alone[3]) == (images[0].tobytes() == images[3].tobytes())


def test_memory_is_that_of_the_checkpoint(tensors):
    stored = sum(tensor.nbytes for tensor in tensors.values())
    assert stored <= make_tower(tensors, torch.bfloat16).num_bytes <= 1.01 * stored
