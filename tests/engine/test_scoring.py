"""Logits of given answers: those of transformers, the same bits in any batch, bounded, nothing left over."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from PIL import Image

from ocrquant.adapters.model import PageInput, load_model, model_folder
from ocrquant.engine.loading import RuntimeSettings, load_runtime
from ocrquant.engine.pages import page_prompt
from ocrquant.engine.prompt import text_prompt
from ocrquant.engine.sampling import SamplingParams
from ocrquant.engine.scoring import ForcedAnswer, Scorer
from ocrquant.errors import PageSizeError, RequestError
from tests.engine.reading import CROPS, crops
from tests.models import reference

PICO = model_folder("pico")

# Largest difference from transformers over the root mean square of the logits. bf16 sums are taken in another
# order and rounded in other places: measured on six crops of the shipped model 0.006 to 0.03. In float32 and
# float64 (whose logits are handed out in float32) the two differ by roundings of sums only.
LIMITS = {"bf16": 0.1, "fp32": 1e-4, "fp64": 1e-6}
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}


def shown(count, kinds=("line", "block")):
    """Crops with their truth."""
    records = [record for kind in kinds for record in crops(kind)[:count]]
    found = []
    for record in records:
        with Image.open(CROPS / record["file_name"]) as image:
            found.append(PageInput(image.convert("RGB"), record["kind"], record["text"], record["file_name"]))
    return found


def forced(runtime, pages):
    processor = runtime.processor
    return [
        ForcedAnswer(
            page_prompt(processor.encode(page.image, page.kind)),
            np.array(processor.answer_ids(page.text), np.int32),
        )
        for page in pages
    ]


def collect(scorer, answers):
    """Logits of whole answers, in their order."""
    parts = [[] for _ in answers]
    for piece in scorer.score(answers):
        assert piece.first == sum(map(len, parts[piece.answer])), "pieces of an answer come in order"
        assert piece.logits.dtype == torch.float32
        parts[piece.answer].append(piece.logits)
    return [torch.cat(part) for part in parts]


def scored(folder, pages, **settings):
    runtime = load_runtime(folder, RuntimeSettings(**settings))
    return collect(Scorer(runtime.engine, runtime.runner), forced(runtime, pages))


@torch.no_grad()
def expected(folder, pages, dtype):
    """Teacher-forced by transformers, page by page."""
    document = load_model(folder, dtype=dtype)
    exact = reference.wholly_float64(document.model) if dtype is torch.float64 else nullcontext()
    with exact:
        encoded = [document.encode([page]) for page in pages]
        return [document.logits(one)[0][one.answer_mask[0]].double() for one in encoded]


@pytest.mark.parametrize("dtype", DTYPES)
def test_logits_are_those_of_transformers(tiny_model_folder, dtype):
    folder = PICO if dtype == "bf16" else tiny_model_folder
    pages = shown(3)
    found = scored(folder, pages, dtype=dtype, max_requests=3, max_step_tokens=200)
    for ours, theirs in zip(found, expected(folder, pages, DTYPES[dtype]), strict=True):
        assert ours.shape == theirs.shape
        assert (ours - theirs).abs().max() < LIMITS[dtype] * theirs.square().mean().sqrt()


@pytest.fixture(scope="module")
def runtime():
    return load_runtime(PICO, RuntimeSettings(max_requests=8))


@pytest.fixture(scope="module")
def answers(runtime):
    return forced(runtime, shown(4))


@pytest.fixture(scope="module")
def whole(runtime, answers):
    return collect(Scorer(runtime.engine, runtime.runner), answers)


@pytest.mark.parametrize("settings", [{"max_requests": 1}, {"max_requests": 3, "max_step_tokens": 37}])
def test_neighbours_and_chunks_give_the_same_bits(answers, whole, settings):
    other = load_runtime(PICO, RuntimeSettings(**settings))
    if not other.runner.is_native:
        pytest.skip("references may round otherwise in another batch")
    for mine, theirs in zip(collect(Scorer(other.engine, other.runner), answers), whole, strict=True):
        assert torch.equal(mine, theirs)


def test_pieces_are_bounded(runtime, answers, whole):
    vocab = runtime.model.spec.vocab
    scorer = Scorer(runtime.engine, runtime.runner, max_logits=5 * vocab + 1)
    pieces = list(scorer.score(answers))
    assert max(len(piece.logits) for piece in pieces) <= 5
    assert sum(len(piece.logits) for piece in pieces) == sum(map(len, whole))
    for piece in pieces:
        torch.testing.assert_close(piece.logits, whole[piece.answer][piece.tokens], rtol=0, atol=0.1)


def test_few_pages_are_enough_for_many_answers(answers, whole):
    tight = load_runtime(PICO, RuntimeSettings(max_requests=4, max_length=512, num_pages=34))
    found = collect(Scorer(tight.engine, tight.runner), answers)
    for mine, theirs in zip(found, whole, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0.1)
    tight.engine.check_integrity()


def test_the_logits_are_those_that_greedy_text_came_from(runtime):
    """Token by token and all at once: the same choice at every place, the end token included."""
    page = shown(1, ("line",))[0]
    prompt = page_prompt(runtime.processor.encode(page.image, page.kind))
    name = runtime.engine.submit(prompt, SamplingParams(max_tokens=100))
    result = runtime.engine.run_until_done()[name]
    ids = np.array([*result.ids, runtime.processor.eos_ids[0]], np.int32)
    (logits,) = collect(Scorer(runtime.engine, runtime.runner), [ForcedAnswer(prompt, ids)])
    assert logits.argmax(-1).tolist() == ids.tolist()
    best = logits.topk(2).values
    gaps = (best[:, 0] - best[:, 1])[:-1]
    # A gap is taken from the very logits that were sampled from.
    limit = 0.0 if runtime.runner.is_native else 0.1
    torch.testing.assert_close(gaps, torch.tensor(result.gaps), rtol=0, atol=limit)


def test_whoever_stops_listening_leaves_nothing_behind(runtime, answers):
    pieces = Scorer(runtime.engine, runtime.runner).score(answers)
    next(pieces)
    assert runtime.engine.pools.num_free_pages < runtime.engine.pools.num_pages
    pieces.close()
    assert runtime.engine.pools.num_free_pages == runtime.engine.pools.num_pages
    assert not runtime.runner._images
    runtime.engine.check_integrity()


def test_an_engine_at_work_is_refused(runtime, answers):
    runtime.engine.submit(answers[0].prompt, SamplingParams(max_tokens=2))
    with pytest.raises(RequestError, match="no request in progress"):
        list(Scorer(runtime.engine, runtime.runner).score(answers[:1]))
    runtime.engine.run_until_done()


def test_answers_that_cannot_be_scored_are_refused(runtime):
    scorer, prompt = Scorer(runtime.engine, runtime.runner), text_prompt([3, 4, 5], 3)
    with pytest.raises(RequestError, match="answer 0: expected at least one token"):
        list(scorer.score([ForcedAnswer(prompt, np.array([], np.int32))]))
    room = runtime.engine.config.max_positions
    with pytest.raises(PageSizeError, match=f"at most {room} tokens"):
        list(scorer.score([ForcedAnswer(prompt, np.zeros(room - 2, np.int32))]))
    small = load_runtime(PICO, RuntimeSettings(num_pages=2))
    with pytest.raises(RequestError, match="at most 32 tokens"):
        list(Scorer(small.engine, small.runner).score([ForcedAnswer(prompt, np.zeros(31, np.int32))]))
    fits = ForcedAnswer(prompt, np.zeros(30, np.int32))
    assert sum(len(p.logits) for p in Scorer(small.engine, small.runner).score([fits])) == 30
