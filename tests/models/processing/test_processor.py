"""Pages of both families against transformers: tokens, pixels, positions; and what a folder may lack."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
import torch

from ocrquant.errors import ModelError, PageSizeError, RecipeError
from ocrquant.models.processing import PixelTable, PromptTokens, image_spec, images, open_processor
from ocrquant.models.processing.images import CHANNELS
from ocrquant.models.processing.pages import image_positions
from tests.models.processing.conftest import noise

SIZES = [(23, 3), (3, 23), (200, 40), (640, 480), (37, 411), (28, 28), (1, 1), (900, 300)]


@pytest.mark.parametrize("size", SIZES)
def test_page_equals_transformers(processor, theirs, size):
    image = noise(*size)
    page = processor.encode(image, "line")
    vision = theirs.vision(image)
    grid = vision["image_grid_thw"]
    assert page.grid == tuple(grid[0].tolist())

    pixels = PixelTable(processor.encoder.images, torch.float32).pack([page.patches])
    assert torch.equal(pixels, vision["pixel_values"].flatten(1))

    count = int(grid.prod()) // theirs.merge_size**2
    prompt = "Read the line." if theirs.model_type == "qwen3_5" else "OCR:"
    ids = theirs.token_ids(processor.tokenizer, prompt, count)
    assert page.tokens.tolist() == ids
    assert page.tokens.dtype == np.int32
    run = slice(page.image_start, page.image_start + page.num_image_tokens)
    assert (page.tokens[run] == processor.encoder.image_token_id).all()

    positions, delta = theirs.rope_index(ids, processor.encoder.image_token_id, grid)
    assert np.array_equal(page.positions, positions.numpy())
    assert page.positions.dtype == np.int32
    assert page.rope_delta == delta


def test_a_decoded_token_goes_on_from_the_last(processor):
    page = processor.encode(noise(300, 60), "line")
    assert page.rope_delta < 0
    assert len(page.tokens) + page.rope_delta == page.positions.max() + 1


@pytest.mark.parametrize("mode", ["L", "RGBA"])
def test_other_colour_modes(processor, theirs, mode):
    image = noise(90, 50, mode)
    found = PixelTable(processor.encoder.images, torch.float32).pack(
        [processor.encode(image, "line").patches]
    )
    assert torch.equal(found, theirs.vision(image)["pixel_values"].flatten(1))


def test_pixels_of_a_batch_are_rounded_once_and_joined(processor, theirs):
    images = [noise(90, 50), noise(40, 200)]
    patches = [processor.encode(image, "block").patches for image in images]
    found = PixelTable(processor.encoder.images, torch.bfloat16).pack(patches)
    expected = torch.cat([theirs.vision(image)["pixel_values"].flatten(1) for image in images])
    assert torch.equal(found, expected.to(torch.bfloat16))
    assert found.is_contiguous()


def test_frames_of_a_video_spread_over_time(theirs):
    ids = [1, 2] + [5] * 12 + [3, 4]
    positions, delta = theirs.rope_index(ids, 5, torch.tensor([[3, 4, 4]]))
    found = image_positions(2, (3, 4, 4), 2, 2)
    assert np.array_equal(found[0], positions.numpy())
    assert found[1] == delta


def test_digest_names_what_the_model_sees(processor):
    one, same = processor.encode(noise(90, 50), "line"), processor.encode(noise(90, 50), "block")
    other = noise(90, 50)
    other.paste((0, 0, 0), (0, 0, 30, 30))
    assert one.image_digest == same.image_digest
    assert one.image_digest != processor.encode(other, "line").image_digest
    spec = processor.encoder.images
    assert spec.digest(one.patches, (1, 2, 8)) != spec.digest(one.patches, (1, 4, 4))


def test_own_instruction(processor):
    prompt = processor.prompt("Read the block.")
    page = processor.encode(noise(90, 50), prompt)
    assert page.tokens[: len(prompt.before)].tolist() == list(prompt.before)
    assert page.tokens[len(page.tokens) - len(prompt.after) :].tolist() == list(prompt.after)
    assert processor.prompt("Read the block.") is prompt


def test_prompts_of_the_recipe(family):
    changed = open_processor(family[0], {"line": "Read the block."})
    assert changed.encoder.prompt("line") == changed.prompt("Read the block.")
    with pytest.raises(RecipeError):
        open_processor(family[0], {"lines": "x"})


def test_answers(processor, theirs):
    tokenizer = processor.tokenizer
    ids = tokenizer("No. 7", add_special_tokens=False)["input_ids"]
    assert processor.decode([*ids, processor.eos_ids[0]]) == "No. 7"
    assert processor.decode([]) == ""
    assert processor.eos_ids == ((1,) if theirs.model_type == "qwen3_5" else (2,))


def test_number_of_tokens_from_the_size(processor):
    for size in SIZES:
        page = processor.encode(noise(*size), "line")
        assert processor.num_tokens(*size, "line") == len(page.tokens)
        assert len(page.patches) == 4 * page.num_image_tokens


def test_page_beyond_the_context(processor):
    prompt = PromptTokens(tuple(range(20)), tuple(range(processor.encoder.max_positions)))
    with pytest.raises(PageSizeError, match="context"):
        processor.encode(noise(90, 50), prompt)


def test_narrow_page_and_odd_kind(processor):
    with pytest.raises(PageSizeError, match="200 times"):
        processor.encode(noise(9000, 40), "line")
    with pytest.raises(RecipeError, match="line, block, page"):
        processor.encode(noise(90, 50), "table")


def test_encoder_goes_to_a_worker_without_torch(processor, tmp_path):
    page = processor.encode(noise(90, 50), "line")
    (tmp_path / "encoder").write_bytes(pickle.dumps(processor.encoder))
    noise(90, 50).save(tmp_path / "page.png")
    code = f"""
import pickle, sys
from PIL import Image
encoder = pickle.load(open({str(tmp_path / "encoder")!r}, "rb"))
page = encoder.encode(Image.open({str(tmp_path / "page.png")!r}), "line")
heavy = {{"torch", "transformers", "scipy"}} & set(sys.modules)
assert not heavy, heavy
print(page.image_digest.hex(), page.tokens.tobytes().hex(), page.positions.tobytes().hex())
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    expected = [page.image_digest, page.tokens.tobytes(), page.positions.tobytes()]
    assert found.stdout.split() == [part.hex() for part in expected]


@pytest.mark.parametrize(
    ("file", "edit", "expected"),
    [
        ("config.json", {"model_type": "gpt2"}, "one of the families"),
        ("config.json", {"image_token_id": None}, "image_token_id"),
        ("config.json", {"image_token_id": 0}, "one image token"),
        ("config.json", {"vision_config": {"patch_size": 9}}, "as in config.json"),
        ("preprocessor_config.json", {"do_resize": False}, "do_resize true"),
        ("preprocessor_config.json", {"image_mean": [0.5]}, "settings of an image processor"),
        ("preprocessor_config.json", {"patch_size": 0}, "sizes from 1"),
        ("preprocessor_config.json", {"size": {"longest_edge": 4, "shortest_edge": 4}}, "pixels at most"),
    ],
)
def test_unusable_settings_are_refused(family, tmp_path, file, edit, expected):
    folder = tmp_path / "model"
    shutil.copytree(family[0], folder, ignore=shutil.ignore_patterns("*.safetensors", "*.jsonl"))
    data = json.loads((folder / file).read_text())
    data.update(edit)
    for key in ("min_pixels", "max_pixels") if "size" in edit else ():
        data.pop(key, None)
    (folder / file).write_text(json.dumps(data))
    with pytest.raises(ModelError, match=expected):
        open_processor(folder)


@pytest.mark.parametrize("file", ["config.json", "preprocessor_config.json"])
def test_missing_file_is_named(family, tmp_path, file):
    folder = tmp_path / "model"
    shutil.copytree(family[0], folder, ignore=shutil.ignore_patterns("*.safetensors", file))
    with pytest.raises(ModelError, match=file):
        open_processor(folder)


def test_settings_inside_a_processor_file(family, tmp_path, processor):
    folder = tmp_path / "model"
    shutil.copytree(family[0], folder, ignore=shutil.ignore_patterns("*.safetensors"))
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    (folder / "preprocessor_config.json").unlink()
    (folder / "processor_config.json").write_text(json.dumps({"image_processor": settings}))
    assert open_processor(folder).encoder == processor.encoder


def test_settings_left_out_are_those_of_the_family():
    from transformers.models.paddleocr_vl.image_processing_pil_paddleocr_vl import (
        PaddleOCRVLImageProcessorPil,
    )

    image = noise(100, 300)
    spec = image_spec("paddleocr_vl", {}, "settings")
    patches, _ = spec.patches(image)
    expected = PaddleOCRVLImageProcessorPil()(images=[image], return_tensors="pt")["pixel_values"]
    assert torch.equal(PixelTable(spec, torch.float32).pack([patches]), expected.flatten(1))


@pytest.mark.parametrize("off", [{"do_rescale": False}, {"do_normalize": False}])
def test_steps_that_are_turned_off(off):
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    image = noise(100, 60)
    spec = image_spec("qwen3_5", off, "settings")
    expected = Qwen2VLImageProcessorPil(**off)(images=[image], return_tensors="pt")["pixel_values"]
    assert torch.equal(PixelTable(spec, torch.float32).pack([spec.patches(image)[0]]), expected)


@pytest.mark.parametrize("model_type", ["qwen3_5", "paddleocr_vl"])
@pytest.mark.parametrize("mode", ["L", "RGB", "1", "LA"])
def test_gray_pages_have_the_patches_of_three_channels(model_type, mode, monkeypatch):
    """One channel is resized for three; pages with a single colored pixel are resized as they are."""
    spec = image_spec(model_type, {}, "settings")
    image = noise(90, 210).convert("L").convert(mode)
    found, _ = spec.patches(image)
    values = found.reshape(len(found), CHANNELS, -1)
    assert (values == values[:, :1]).all()
    monkeypatch.setattr(images, "_as_gray", lambda image: None)
    expected, _ = spec.patches(image)
    assert (found == expected).all()
    monkeypatch.undo()
    colored = image.convert("RGB")
    colored.putpixel((89, 209), (255, 0, 0))
    patches, _ = spec.patches(colored)
    values = patches.reshape(len(patches), CHANNELS, -1)
    assert (values[:, 0] != values[:, 1]).any()


def test_a_large_page_in_color_is_not_copied_to_find_that_out():
    page = noise(1500, 1000)
    tracemalloc.start()
    assert images._as_gray(page) is None
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 200_000


@pytest.mark.parametrize("place", [(0, 0), (701, 333)])
def test_one_pixel_in_color_keeps_three_channels(place):
    page = noise(800, 600).convert("L").convert("RGB")
    assert images._as_gray(page) is not None
    page.putpixel(place, (1, 2, 3))
    assert images._as_gray(page) is None
