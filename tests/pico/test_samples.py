"""Spans, stacks and small changes keep text and places together."""

from __future__ import annotations

import numpy as np
import pytest

from ocrquant.pico import samples
from ocrquant.pico.corpus import Crop


def crop(text: str = "two words here", step: int = 10, height: int = 18) -> Crop:
    places = np.array([5 + step * i for i, c in enumerate(text) if not c.isspace()], dtype=np.float32)
    grey = np.full((height, step * len(text)), 255, dtype=np.uint8)
    for x in places.astype(int):
        grey[4:14, x] = 0
    return Crop(grey=grey, text=text, kind="line", style=("d", 10.0, 96), char_x=places, top=0)


def darkest_columns(sample: samples.Sample) -> np.ndarray:
    return sample.grey.min(axis=0)


def test_spaces_lie_midway():
    assert samples.centres("a b", np.array([5.0, 25.0], dtype=np.float32)).tolist() == [5.0, 15.0, 25.0]


def test_unknown_places_are_nan():
    assert np.isnan(samples.centres("abc", np.array([], dtype=np.float32))).all()


@pytest.mark.parametrize("seed", range(20))
def test_a_span_is_whole_words_with_their_ink(seed: int):
    source = crop()
    grey, text, places = samples.cut_span(
        source, samples.centres(source.text, source.char_x), 60, np.random.default_rng(seed)
    )
    assert text in {"two", "words", "here", "two words", "words here"}
    assert len(places) == len(text)
    ink = np.flatnonzero(grey.min(axis=0) == 0)
    solid = [round(float(x)) for x, c in zip(places, text, strict=True) if c != " "]
    assert ink.tolist() == solid


@pytest.mark.parametrize("seed", range(10))
def test_places_follow_margins_and_scaling(seed: int):
    sample = samples.plain_sample(crop("abcdef"), np.random.default_rng(seed))
    assert sample.grey.shape[0] % 20 == sample.grey.shape[1] % 20 == 0
    dark = darkest_columns(sample)
    for x in sample.char_x:
        assert dark[max(0, int(x) - 1) : int(x) + 2].min() < 140


def test_a_stack_has_one_line_a_row():
    sample = samples.stack_lines([crop("first line"), crop("second one")], np.random.default_rng(0), 1000)
    assert sample.text == "first line\nsecond one"
    assert sample.kind == "block"
    assert len(sample.char_x) == len(sample.line_y) == len(sample.text)
    assert np.isnan(sample.char_x[10])
    assert sample.line_y[0, 1] <= sample.line_y[12, 0] + 2


def test_streams_with_one_seed_are_equal():
    mixture = samples.Mixture(max_width=80, stack_share=0.5, block_share=0.0)
    streams = [
        samples.SampleStream([crop(), crop("other text")], [], np.random.default_rng(4)) for _ in range(2)
    ]
    for _ in range(20):
        one, two = (stream.draw(mixture) for stream in streams)
        assert one.text == two.text
        assert np.array_equal(one.grey, two.grey)
