"""A tiny model with its rounded weights, and pages of noise."""

import random
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
from PIL import Image

from ocrquant.adapters import search_space
from ocrquant.adapters.model import load_model
from ocrquant.artifacts import PartialStage, RunFolder
from ocrquant.calibrate import collect_statistics, round_groups
from ocrquant.formats import Precision
from ocrquant.pages import ImageRef, Page
from ocrquant.recipe.sections import StatisticsSection, WeightsSection
from ocrquant.sensitivity.batches import encode
from ocrquant.sensitivity.candidates import Change, RoundedCandidates, candidates_of, group_records
from ocrquant.sensitivity.divergence import divergences
from ocrquant.sensitivity.precision import in_float32
from ocrquant.sensitivity.replay import HiddenStates, trace_batch
from ocrquant.simulate import apply_plan, rounded_smoothing

CANDIDATES = [Precision.NVFP4, Precision.FP8]


@pytest.fixture(scope="session")
def pages(tmp_path_factory):
    """Five lines and a block, of different lengths."""
    folder = tmp_path_factory.mktemp("sensitivity-pages")
    draw = np.random.default_rng(3)
    found = []
    for number, text in enumerate(["ab", "some words", "12.50", "a longer line of text", "x", "two\nlines"]):
        width, height = 64 + 16 * number, 64 if "\n" in text else 32
        path = folder / f"page-{number}.png"
        Image.fromarray(draw.integers(0, 255, (height, width), dtype=np.uint8)).save(path)
        found.append(
            Page(
                id=path.stem,
                document=path.stem,
                kind="block" if "\n" in text else "line",
                split="calibration",
                image=ImageRef(path, "image"),
                width=width,
                height=height,
                text=text,
                truth_source="ground_truth",
            )
        )
    return found


@pytest.fixture(scope="session")
def document(tiny_model_folder):
    return load_model(tiny_model_folder)


@pytest.fixture(scope="session")
def rounded_run(tmp_path_factory, document, pages):
    """Path of a run folder with rounded weights, one norm of which is smoothed at least, and the artefact."""
    path = tmp_path_factory.mktemp("sensitivity") / "run"
    batching = StatisticsSection(batch_size=6)
    with RunFolder.open(path, recipe_digest="0" * 64, recipe_text="{}") as run:
        statistics = collect_statistics(run, document, pages, batching, {})
        rounding = round_groups(
            run,
            document,
            pages,
            statistics,
            WeightsSection(scale_search=False, gptq=False, num_held_back_pages=2),
            CANDIDATES,
            batching,
            {},
        )
    return path, rounding


@pytest.fixture(scope="session")
def candidates(document):
    return candidates_of(document.map, group_records(document.map, search_space(document.map, CANDIDATES)))


@pytest.fixture
def partial(tmp_path):
    return PartialStage(tmp_path / "partial", {})


@pytest.fixture
def scoring(document, rounded_run, pages, partial):
    """Opens what the stage sets up: smoothing, float32 unless refused, a traced batch, rounded weights."""
    path, rounding = rounded_run

    @contextmanager
    def open_scoring(*, float32=True, batch=slice(0, 4), resident_bytes=1 << 30, change=None):
        with ExitStack() as stack:
            weights = stack.enter_context(rounding.open_weights(path))
            stack.enter_context(apply_plan(document.model, {}, smoothing=rounded_smoothing(weights)))
            if float32:
                stack.enter_context(in_float32(document.model))
            encoded = encode(document, pages[batch])
            encoded = change(encoded) if change else encoded
            trace = trace_batch(document, encoded, HiddenStates(partial, resident_bytes))
            yield encoded, trace, RoundedCandidates(rounding, weights, document)

    return open_scoring


@pytest.fixture
def measured(partial):
    """KL of some groups and formats on a trace, each alone."""

    def measure(trace, candidates, rounded, max_bytes=1 << 30):
        changes = [Change({c.group: c.precision}) for c in candidates]
        return divergences(trace, changes, rounded, HiddenStates(partial, max_bytes, "carried"))

    return measure


@pytest.fixture
def rng(request):
    return random.Random(request.node.name)
