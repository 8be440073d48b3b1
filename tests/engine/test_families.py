"""Both families from a folder with an image to text, token by token against `generate` of transformers."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText

from ocrquant.engine.loading import RuntimeSettings, load_runtime
from ocrquant.engine.pages import page_prompt
from ocrquant.engine.sampling import SamplingParams
from tests.models.processing.conftest import paddle_folder
from tests.models.reference import make

NEW_TOKENS = 24


@pytest.fixture(scope="module")
def paddle(tmp_path_factory):
    """A tiny PaddleOCR-VL with random weights, complete with tokenizer and image settings."""
    folder = paddle_folder(tmp_path_factory.mktemp("paddle"))
    named = json.loads((folder / "config.json").read_text())
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    settings |= {"min_pixels": 28 * 28 * 4, "max_pixels": 28 * 28 * 64}
    settings["size"] = {"min_pixels": settings["min_pixels"], "max_pixels": settings["max_pixels"]}
    model = make("paddleocr_vl", torch.float32)
    table = model.model.language_model.embed_tokens
    assert table.num_embeddings < 110, "the tokenizer has more tokens than the model"
    model.resize_token_embeddings(110)
    model.config.image_token_id = named["image_token_id"]
    model.config.text_config.eos_token_id = named["eos_token_id"]
    model.generation_config.eos_token_id = named["eos_token_id"]
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(params=["qwen3_5", "paddleocr_vl"])
def folder(request, tiny_model_folder):
    return tiny_model_folder if request.param == "qwen3_5" else request.getfixturevalue("paddle")


def pictures():
    generator = np.random.default_rng(0)
    sizes = [(120, 60), (61, 200), (90, 90)]
    return [Image.fromarray(generator.integers(0, 256, (h, w, 3), dtype=np.uint8)) for w, h in sizes]


def theirs(folder, runtime, encoded, dtype):
    """Greedy tokens of transformers for one page, and how far the largest logit was above the second."""
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=dtype).eval()
    ids = torch.from_numpy(encoded.tokens).long()[None]
    types = (ids == runtime.model.spec.image_token_id).int()
    pixels = runtime.runner._pixels.pack([encoded.patches]).to(dtype)
    if model.config.model_type == "paddleocr_vl":
        pixels = pixels.view(len(pixels), 3, 14, 14)
    with torch.no_grad():
        output = model.generate(
            input_ids=ids,
            mm_token_type_ids=types,
            pixel_values=pixels,
            image_grid_thw=torch.tensor([encoded.grid]),
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NEW_TOKENS,
            min_new_tokens=NEW_TOKENS,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
    tokens = output.sequences[0, ids.shape[1] :].tolist()
    top = torch.stack(output.logits)[:, 0].float().topk(2).values
    return tokens, (top[:, 0] - top[:, 1]).tolist()


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_pages_at_once_read_as_transformers_reads_each(folder, dtype):
    runtime = load_runtime(folder, RuntimeSettings(max_requests=3, dtype=dtype, max_step_tokens=48))
    encoded = [runtime.processor.encode(picture, "line") for picture in pictures()]
    sampling = SamplingParams(max_tokens=NEW_TOKENS, ignore_eos=True)
    names = [runtime.engine.submit(page_prompt(page), sampling) for page in encoded]
    results = runtime.engine.run_until_done()
    runtime.engine.check_integrity()
    torch_dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    # Two sums of the same products in another order: what a tie may be away from.
    noise = {"fp32": 1e-3, "bf16": 0.25}[dtype]
    for name, page in zip(names, encoded, strict=True):
        expected, gaps = theirs(folder, runtime, page, torch_dtype)
        found = list(results[name].ids)
        pairs = zip(expected, found, strict=True)
        first = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        assert first is None or gaps[first] < noise, (first, gaps[first], expected, found)
        # A tie at the very beginning would leave nothing that was compared.
        assert first is None or first >= 2 or dtype == "bf16"
