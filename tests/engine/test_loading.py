"""What is refused before an engine is made, and what an engine made from a folder refuses of its prompts."""

import dataclasses
import json
import math
import os

import numpy as np
import pytest
import torch
from PIL import Image

from ocrquant.engine.device import Device
from ocrquant.engine.loading import RuntimeSettings, _check_native, load_runtime
from ocrquant.engine.pages import page_prompt
from ocrquant.engine.prompt import text_prompt
from ocrquant.engine.sampling import SamplingParams
from ocrquant.errors import EngineError, ModelError, RequestError


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_requests", 0),
        ("max_requests", "3"),
        ("max_requests", 2.0),
        ("max_length", 0),
        ("max_length", 1.5),
        ("max_step_tokens", 0),
        ("max_step_tokens", 10**12),
        ("page_size", 0),
        ("page_size", -16),
        ("num_pages", 0),
        ("num_pages", True),
        ("queue_limit", 0),
        ("activations", "fp8"),
        ("state", "paged"),
        ("policy", "lifo"),
        ("dtype", "fp16"),
        ("dtype", ["bf16"]),
    ],
)
def test_settings_out_of_range_are_refused_by_name(name, value):
    with pytest.raises(EngineError, match=f"engine.{name}"):
        RuntimeSettings(**{name: value})


@pytest.mark.parametrize("device", ["tpu", "meta", 7.5])
def test_devices_that_are_not_there_are_refused(tiny_model_folder, device):
    with pytest.raises(EngineError, match=r"engine\.device"):
        load_runtime(tiny_model_folder, RuntimeSettings(device=device))


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ((), "architectures", 5),
        ((), "vision_config", 5),
        ((), "text_config", 5),
        ((), "quantization_config", []),
        (("text_config",), "rms_norm_eps", "1e-6"),
        (("text_config", "rope_parameters"), "rope_type", "yarn"),
        (("vision_config",), "rope_parameters", 5),
    ],
)
def test_configurations_of_the_wrong_kind_are_refused(tiny_model_folder, tmp_path, section, key, value):
    config = json.loads((tiny_model_folder / "config.json").read_text())
    place = config
    for name in section:
        place = place[name]
    place[key] = value
    for file in tiny_model_folder.iterdir():
        if file.name != "config.json":
            os.symlink(file, tmp_path / file.name)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError):
        load_runtime(tmp_path)


@pytest.fixture(scope="module")
def runtime(tiny_model_folder):
    return load_runtime(tiny_model_folder, RuntimeSettings(max_requests=2, max_length=256))


@pytest.fixture(scope="module")
def page(runtime):
    return page_prompt(runtime.processor.encode(Image.new("RGB", (120, 60), "white"), "line"))


SAMPLING = SamplingParams(max_tokens=4)


@pytest.mark.parametrize("token", [-1, 10**6])
def test_tokens_beyond_the_vocabulary_are_refused(runtime, token):
    with pytest.raises(RequestError, match=r"prompt\.tokens"):
        runtime.engine.submit(text_prompt([5, token], 3), SAMPLING)


@pytest.mark.parametrize(
    "change",
    [
        lambda image: {"pixels": None},
        lambda image: {"pixels": image.pixels[:-1]},
        lambda image: {"pixels": image.pixels.astype(np.float32)},
        lambda image: {"grid": (1, 3, image.grid[2])},
        lambda image: {"grid": (0, 0, 0)},
        lambda image: {"grid": (1, 2, 2)},
        lambda image: {"num_tokens": image.num_tokens - 1},
    ],
)
def test_an_image_that_is_not_its_grid_is_refused_and_the_others_go_on(runtime, page, change):
    (image,) = page.images
    odd = dataclasses.replace(page, images=(dataclasses.replace(image, **change(image)),))
    first = runtime.engine.submit(page, SAMPLING)
    runtime.engine.step()
    with pytest.raises(RequestError, match=r"prompt\.images\[0\]"):
        runtime.engine.submit(odd, SAMPLING)
    again = runtime.engine.submit(page, SAMPLING)
    results = runtime.engine.run_until_done()
    assert results[first].ids == results[again].ids
    runtime.engine.check_integrity()


def test_one_image_of_no_numbers_leaves_the_others_alone(runtime, page, monkeypatch):
    engine, encode = runtime.engine, runtime.model.encode_images
    sampling = SamplingParams(max_tokens=8, ignore_eos=True)
    alone = engine.submit(page, sampling)
    expected = engine.run_until_done()[alone].ids

    def poisoned(pixels, grids):
        encoded = encode(pixels, grids)
        encoded[: len(encoded) // len(grids)] = math.nan
        return encoded

    monkeypatch.setattr(type(runtime.model), "encode_images", lambda self, *a: poisoned(*a))
    names = [engine.submit(page, sampling) for _ in range(2)]
    results = engine.run_until_done()
    assert results[names[1]].ids == expected
    assert set(results[names[0]].ids) == {0}
    monkeypatch.undo()
    # Neither do its pages and slots, taken by the next ones.
    names = [engine.submit(page, sampling) for _ in range(2)]
    results = engine.run_until_done()
    assert [results[name].ids for name in names] == [expected, expected]


@pytest.mark.parametrize("sizes", [{"key_dim": 20, "value_dim": 16}, {"key_dim": 16, "value_dim": 24}])
def test_heads_that_native_kernels_do_not_take_are_refused_before_the_first_step(runtime, sizes):
    spec = runtime.model.spec
    odd = dataclasses.replace(spec, state=dataclasses.replace(spec.state, **sizes))
    device = Device(torch.device("cpu"), torch.bfloat16)
    _check_native(spec, device)
    with pytest.raises(ModelError, match="heads of linear attention"):
        _check_native(odd, device)
    _check_native(odd, Device(torch.device("cpu"), torch.float32))
