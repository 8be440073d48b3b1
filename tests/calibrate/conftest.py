"""A tiny model, a dozen pages of different sizes, and run folders for the stages that look at activations."""

import numpy as np
import pytest
import torch
from PIL import Image

from ocrquant.adapters.model import load_model
from ocrquant.artifacts import RunFolder
from ocrquant.pages import ImageRef, Page
from tests.calibrate.making import StoppedError


@pytest.fixture(scope="session")
def pages(tmp_path_factory):
    """Ten lines and two blocks of noise, 60 to 240 pixels wide, with texts of different lengths."""
    folder = tmp_path_factory.mktemp("pages")
    draw = np.random.default_rng(0)
    found = []
    for number in range(12):
        kind = "block" if number >= 10 else "line"
        width, height = 60 + 20 * (7 * number % 10), 60 if kind == "block" else 20
        path = folder / f"{number}.png"
        Image.fromarray(draw.integers(0, 255, (height, width), dtype=np.uint8)).save(path)
        text = "word " * (1 + 5 * number % 7) + str(number)
        found.append(
            Page(
                id=path.name,
                document=path.stem,
                kind=kind,
                split="calibration",
                image=ImageRef(path, "image"),
                width=width,
                height=height,
                text=text,
                truth_source="ground_truth",
            )
        )
    return found


@pytest.fixture(scope="module")
def document(tiny_model_folder):
    """The model in bf16; each module of tests has its own, so a changed weight stays inside."""
    return load_model(tiny_model_folder)


@pytest.fixture
def new_run(tmp_path):
    """Opens run folders that are closed at the end of the test."""
    opened = []

    def open_run(name="run"):
        run = RunFolder.open(tmp_path / name, recipe_digest="0" * 64, recipe_text="{}")
        opened.append(run)
        return run

    yield open_run
    for run in opened:
        run.close()


@pytest.fixture
def changed():
    """Changes weights in place and puts them back at the end of the test."""
    kept = []

    def change(module, function, name="weight"):
        parameter = getattr(module, name)
        kept.append((parameter, parameter.detach().clone()))
        with torch.no_grad():
            function(parameter)

    yield change
    for parameter, before in reversed(kept):
        with torch.no_grad():
            parameter.copy_(before)


@pytest.fixture
def stopping(monkeypatch):
    """Makes a function raise at its n-th call, never if that is None, and lists the calls before."""

    def stop(module, name, at=None):
        original, calls = getattr(module, name), []

        def call(*arguments, **keywords):
            if len(calls) == at:
                raise StoppedError
            calls.append(name)
            return original(*arguments, **keywords)

        monkeypatch.setattr(module, name, call)
        return calls

    return stop
