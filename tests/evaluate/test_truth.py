from dataclasses import replace

import pytest

from ocrquant.adapters import model_folder
from ocrquant.adapters.model import load_model
from ocrquant.errors import PageSizeError
from ocrquant.evaluate.truth import known_truth, longest_sequence, model_truth
from ocrquant.models.processing import open_processor
from ocrquant.pages import load_pages
from tests.engine.reading import CROPS

PICO = model_folder("pico")
TEXTS = ["", "a line of text", "two\nlines", "<|image_pad|> 1 <|im_end|>", "caf\u00e9 \u2211"]


@pytest.fixture(scope="module")
def processor():
    return open_processor(PICO)


@pytest.fixture
def page():
    return next(page for page in load_pages(CROPS, default_kind="line") if page.split == "heldout")


def short(processor, page, answer):
    """A processor whose context ends `answer` tokens behind the page."""
    prompt = processor.num_tokens(page.width, page.height, page.kind)
    return replace(processor, encoder=replace(processor.encoder, max_positions=prompt + answer))


@pytest.mark.parametrize("text", TEXTS)
def test_answers_have_the_tokens_that_the_model_was_calibrated_on(processor, text):
    assert processor.answer_ids(text) == load_model(PICO).encoder.answer_ids(text)


def test_a_known_truth_is_judged_and_fed_as_it_is(processor, page):
    truth = known_truth(processor, page)
    assert truth.judged == page.text
    assert truth.ids[-1] in processor.eos_ids
    assert processor.decode(truth.ids) == page.text
    prompt = processor.num_tokens(page.width, page.height, page.kind)
    assert truth.length == prompt + len(truth.ids)


def test_a_truth_beyond_the_context_is_refused_by_name(processor, page):
    count = len(processor.answer_ids(page.text))
    assert known_truth(short(processor, page, count), page)
    with pytest.raises(PageSizeError, match=rf"page {page.id}.*the context of the model"):
        known_truth(short(processor, page, count - 1), page)
    with pytest.raises(PageSizeError, match=rf"page {page.id}"):
        known_truth(short(processor, page, 0), page)


def test_a_transcription_that_was_cut_off_is_fed_as_far_as_there_is_room(processor, page):
    page = replace(page, text=None, truth_source="model")
    text = "words and words " * 4
    prompt = processor.num_tokens(page.width, page.height, page.kind)
    whole = model_truth(processor, page, text, prompt + 1000)
    assert processor.decode(whole.ids) == text
    cut = model_truth(processor, page, text, prompt + 10)
    assert cut.judged == text
    assert cut.length <= prompt + 10
    assert processor.decode(cut.ids)
    assert text.startswith(processor.decode(cut.ids))


def test_there_is_room_for_every_text_and_every_truth(processor, page):
    prompt = processor.num_tokens(page.width, page.height, page.kind)
    count = len(processor.answer_ids(page.text))
    assert longest_sequence(processor, [page], 1) == prompt + count
    assert longest_sequence(processor, [page], count + 9) == prompt + count + 9
    silent = replace(page, text=None, truth_source="model")
    assert longest_sequence(processor, [page, silent], 500) == prompt + 1001
    limited = short(processor, page, count)
    assert longest_sequence(limited, [page, silent], 5000) == prompt + count
