"""Settings, prompts and sampling: what is refused, by name, and index arithmetic by hand."""

import numpy as np
import pytest

from ocrquant.engine.config import EngineConfig
from ocrquant.engine.prompt import Prompt, PromptImage, text_prompt
from ocrquant.engine.request import Request
from ocrquant.engine.sampling import SamplingParams
from ocrquant.errors import EngineError, RequestError

GOOD = {"max_positions": 64, "num_pages": 10}


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"max_positions": 0}, "engine.max_positions: expected a whole number of at least 1, got 0"),
        ({"num_pages": -1}, "engine.num_pages"),
        ({"page_size": 1.5}, "engine.page_size"),
        ({"page_size": True}, "engine.page_size"),
        ({"max_requests": 0}, "engine.max_requests"),
        ({"queue_limit": 0}, "engine.queue_limit"),
        ({"max_window": 0}, "engine.max_window"),
        ({"position_axes": 0}, "engine.position_axes"),
        ({"num_slots": 0}, "engine.num_slots: expected at least 1 slot, got 0"),
        ({"drafter_pages": -1}, "engine.drafter_pages: expected a whole number of at least 0"),
        ({"prefix_cache_bytes": -1}, "engine.prefix_cache_bytes"),
        ({"policy": "lifo"}, "engine.policy: expected fcfs or shortest, got 'lifo'"),
        ({"keep_prompts": 1}, "engine.keep_prompts"),
        ({"recurrent": None}, "engine.recurrent"),
        ({"max_requests": 8, "max_step_tokens": 7}, "engine.max_step_tokens: .* = 8 rows"),
        ({"max_requests": 4, "max_window": 3, "max_step_tokens": 11}, "engine.max_step_tokens: .* = 12 rows"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(settings, match):
    with pytest.raises(EngineError, match=match):
        EngineConfig(**GOOD | settings)


def test_what_follows_from_the_settings():
    config = EngineConfig(**GOOD | {"page_size": 7, "max_requests": 5})
    assert (config.usable_slots, config.state_rows, config.pages_per_request) == (5, 6, 10)
    assert [config.pages_for(n) for n in (0, 1, 7, 8)] == [0, 1, 1, 2]
    assert EngineConfig(**GOOD, num_slots=3).state_rows == 4


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"temperature": -0.1}, "sampling.temperature"),
        ({"temperature": float("nan")}, "sampling.temperature"),
        ({"top_p": 0.0}, r"sampling.top_p: expected a number in \(0, 1\], got 0.0"),
        ({"top_p": 1.01}, "sampling.top_p"),
        ({"seed": -1}, "sampling.seed"),
        ({"seed": 1 << 64}, "sampling.seed"),
        ({"max_tokens": 0}, "sampling.max_tokens"),
        ({"stop": "abc"}, "sampling.stop"),
        ({"stop": ("a", "")}, "sampling.stop"),
        ({"stop": 5}, "sampling.stop"),
        ({"temperature": "1"}, "sampling.temperature"),
        ({"temperature": 1e39}, "sampling.temperature"),
        ({"temperature": True}, "sampling.temperature"),
        ({"top_p": None}, "sampling.top_p"),
        ({"top_p": float("nan")}, "sampling.top_p"),
        ({"seed": 1.5}, "sampling.seed"),
        ({"max_tokens": 1.5}, "sampling.max_tokens"),
        ({"max_tokens": float("inf")}, "sampling.max_tokens"),
        ({"max_tokens": True}, "sampling.max_tokens"),
        ({"stop_at_loop": "no"}, "sampling.stop_at_loop"),
    ],
)
def test_sampling_out_of_range_is_refused_by_name(settings, match):
    with pytest.raises(RequestError, match=match):
        SamplingParams(**settings)


@pytest.mark.parametrize("seed", [0, 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 64) - 1])
def test_seed_words_are_the_seed(seed):
    words = np.array(SamplingParams(seed=seed).seed_words, np.int32).view(np.uint32).astype(object)
    assert words[0] + (words[1] << 32) == seed


def prompt_of(tokens, *images):
    plain = text_prompt(tokens, 3)
    return Prompt(
        plain.tokens, plain.positions, 0, tuple(PromptImage(b"x", s, n, (1, 2, 2)) for s, n in images)
    )


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: text_prompt([], 3), "prompt.tokens: expected int32"),
        (lambda: Prompt(np.zeros(2, np.int64), np.zeros((3, 2), np.int32)), "prompt.tokens: .* got int64"),
        (lambda: Prompt(np.zeros(2, np.int32), np.zeros((3, 3), np.int32)), r"int32 \[axes, 2\], got int32"),
        (lambda: Prompt(np.zeros(2, np.int32), np.zeros((3, 2), np.int64)), "prompt.positions"),
        (lambda: prompt_of([1] * 5, (3, 3)), r"prompt.images\[0\]: expected a run within \[0, 5\)"),
        (lambda: prompt_of([1] * 5, (0, 3), (2, 1)), r"prompt.images\[1\]: expected a run within \[3, 5\)"),
        (lambda: prompt_of([1] * 5, (0, 0)), r"prompt.images\[0\]"),
    ],
)
def test_prompts_that_do_not_agree_with_themselves_are_refused(build, match):
    with pytest.raises(RequestError, match=match):
        build()


def test_rows_of_images_by_part_of_the_prompt():
    prompt = prompt_of([1] * 12, (2, 3), (6, 4))
    assert prompt.images_end == 10
    assert prompt.image_runs(0, 12) == [(2, 5), (6, 10)]
    assert prompt.image_runs(4, 7) == [(4, 5), (6, 7)]
    assert prompt.image_runs(5, 6) == []
    assert prompt.image_rows(0, 12) == (0, 7)
    assert prompt.image_rows(4, 7) == (2, 4)
    assert prompt.image_rows(9, 12) == (6, 7)
    assert text_prompt([1], 3).images_end == 0
    parts = [prompt.image_rows(n, n + 1) for n in range(12)]
    assert [end for _, end in parts if _ != end] == list(range(1, 8))


def test_digests_name_tokens_positions_and_images():
    base = prompt_of([1, 2, 3, 4, 5, 6], (2, 2))
    assert base.prefix_digest(6) == prompt_of([1, 2, 3, 4, 5, 6], (2, 2)).prefix_digest(6)
    others = [
        prompt_of([1, 2, 3, 4, 5, 7], (2, 2)),
        prompt_of([1, 2, 3, 4, 5, 6], (2, 3)),
        prompt_of([1, 2, 3, 4, 5, 6]),
        Prompt(base.tokens, base.positions + 1, 0, base.images),
        Prompt(base.tokens, base.positions, 0, (PromptImage(b"y", 2, 2, (1, 2, 2)),)),
        Prompt(base.tokens, base.positions, 0, (PromptImage(b"x", 2, 2, (1, 4, 1)),)),
    ]
    assert len({prompt.prefix_digest(6) for prompt in [base, *others]}) == 7
    assert base.prefix_digest(2) == others[2].prefix_digest(2)  # the image comes later
    assert base.prefix_digest(5) != base.prefix_digest(6)


def test_known_tokens_across_the_border_of_prompt_and_answer():
    request = Request("a", 0, text_prompt([1, 2, 3], 3), SamplingParams(), 9)
    for token in (4, 5, 6):
        request.extend((token,), (0.5,))
    assert request.num_tokens == 6
    whole = [1, 2, 3, 4, 5, 6]
    for start in range(6):
        for end in range(start + 1, 7):
            tokens = request.tokens(start, end)
            assert tokens.dtype == np.int32
            assert tokens.tolist() == whole[start:end]
