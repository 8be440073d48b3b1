"""Kept prefixes: what hits, what is shared and copied, what goes, and the same text all the way."""

import numpy as np
import pytest

from ocrquant.engine.prefix_cache import prefix_keys
from ocrquant.engine.prompt import text_prompt
from ocrquant.engine.sampling import SamplingParams
from tests.engine.fakes import document_prompt
from tests.engine.test_engine import check_answer, check_empty, make_engine, run_checked

HEAD = [5, 6, 7, 8, 9, 10, 11]


def page(seed, *, digest=None, head=HEAD, after=3):
    rng = np.random.default_rng(seed)
    return document_prompt(rng, before=len(head), image=(2, 3), after=after, text=head, digest=digest)


def ask(engine, prompt, **settings):
    sampling = SamplingParams(**{"max_tokens": 12, "ignore_eos": True} | settings)
    name = engine.submit(prompt, sampling)
    result = run_checked(engine)[name]
    check_answer(result, prompt, sampling, engine)
    return result


@pytest.mark.parametrize("drafter_pages", [0, 400])
@pytest.mark.parametrize("recurrent", [True, False])
@pytest.mark.parametrize("page_size", [1, 4, 7, 64])
def test_a_page_that_comes_again_is_not_computed_again(page_size, recurrent, drafter_pages):
    engine, runner = make_engine(
        prefix_cache_bytes=100_000, page_size=page_size, recurrent=recurrent, drafter_pages=drafter_pages
    )
    if not recurrent:
        runner._chain = chain_without_state
    prompt = page(0)
    first, second = ask_stateless(engine, prompt, recurrent), ask_stateless(engine, prompt, recurrent)
    assert (first.num_cached, second.num_cached) == (0, len(prompt) - 1)
    assert second.ids == first.ids
    assert engine.prefixes.num_hits == 1
    assert runner.encoded == 1
    assert runner.steps[-12].prefill_rows == 1
    assert (runner.snapshots, runner.restored) == ((2, 1) if recurrent else (0, 0))
    # The text before the image ends within a page, too, but only what was hit is copied.
    assert runner.copied == ((len(prompt) - 1) % page_size != 0)
    check_empty(engine, runner)


def chain_without_state(meta, starts, values):
    return [0] * len(values)


def ask_stateless(engine, prompt, recurrent):
    if recurrent:
        return ask(engine, prompt)
    engine.submit(prompt, SamplingParams(max_tokens=12, ignore_eos=True))
    (result,) = run_checked(engine).values()
    return result


def test_the_text_before_another_image_is_shared_and_the_image_is_not():
    engine, runner = make_engine(prefix_cache_bytes=100_000)
    first, second = page(0), page(1)
    assert ask(engine, first).num_cached == 0
    assert ask(engine, second).num_cached == len(HEAD)
    assert runner.encoded == 2
    assert ask(engine, page(2, head=HEAD[:3])).num_cached == 0
    check_empty(engine, runner)


def test_equal_tokens_with_other_pixels_are_another_page():
    engine, _ = make_engine(prefix_cache_bytes=100_000)
    first = page(0, digest=b"one")
    ask(engine, first)
    other = page(0, digest=b"two")
    assert (first.tokens == other.tokens).all()
    assert ask(engine, other).num_cached == len(HEAD)
    assert ask(engine, page(0, digest=b"one")).num_cached == len(first) - 1


def test_same_tokens_at_other_positions_do_not_hit():
    engine, _ = make_engine(prefix_cache_bytes=100_000)
    ask(engine, page(0, digest=b"one"))
    rng = np.random.default_rng(0)
    tall = document_prompt(rng, before=7, image=(3, 2), after=3, text=HEAD, digest=b"one")
    assert ask(engine, tall).num_cached == len(HEAD)


def test_settings_of_sampling_do_not_matter_for_a_hit():
    engine, _ = make_engine(prefix_cache_bytes=100_000)
    prompt = page(0)
    ask(engine, prompt)
    for settings in ({"temperature": 1.0, "seed": 3}, {"temperature": 1.0, "seed": 4, "top_p": 0.5}):
        assert ask(engine, prompt, **settings).num_cached == len(prompt) - 1


def test_only_what_is_asked_for_is_kept():
    rng = np.random.default_rng(0)
    for settings, lengths in (
        ({"prefix_cache_bytes": 0}, []),
        ({"prefix_cache_bytes": 1}, [15, 7]),
        ({"prefix_cache_bytes": 1, "keep_prompts": False}, [7]),
    ):
        engine, _ = make_engine(**settings)
        keys = prefix_keys(document_prompt(rng, before=7, image=(2, 3), after=3), engine.config)
        assert [key.num_tokens for key in keys] == lengths
    engine, _ = make_engine(prefix_cache_bytes=1)
    assert [k.num_tokens for k in prefix_keys(text_prompt([1, 2, 3], 3), engine.config)] == [2]
    assert prefix_keys(text_prompt([1], 3), engine.config) == ()


def test_memory_is_bounded_and_the_least_recently_used_goes():
    # A prompt takes 4 pages of 100 bytes and a state of 64, its head 2 pages and a state.
    engine, runner = make_engine(prefix_cache_bytes=2 * 464 + 264)
    first, second, third = page(0), page(1), page(2)
    ask(engine, first)
    ask(engine, second)
    assert (len(engine.prefixes), engine.prefixes.nbytes) == (3, 2 * 464 + 264)
    ask(engine, first)
    ask(engine, third)  # its head is hit first, so that the second page goes
    assert engine.prefixes.num_evictions == 1
    assert engine.prefixes.nbytes <= engine.config.prefix_cache_bytes
    assert ask(engine, first).num_cached == len(first) - 1
    assert ask(engine, second).num_cached == len(HEAD)
    check_empty(engine, runner)


def test_what_is_larger_than_the_cache_costs_no_step():
    engine, runner = make_engine(prefix_cache_bytes=300)
    prompt = page(0)
    ask(engine, prompt)
    assert len(engine.prefixes) == 1  # the head alone fits
    ask(engine, page(1))
    assert [shape.prefill_rows for shape in runner.steps if shape.prefill] == [7, 9, 9]


def test_kept_prefixes_give_way_to_requests():
    engine, runner = make_engine(prefix_cache_bytes=100_000, num_pages=18, max_requests=2, max_positions=64)
    prompts = [page(seed) for seed in range(5)]
    for prompt in prompts * 2:
        ask(engine, prompt, max_tokens=30)
    assert engine.prefixes.num_evictions > 0
    assert engine.scheduler.num_preemptions == 0
    check_empty(engine, runner)


def test_a_prefix_that_fills_the_pool_gives_way_to_its_own_prompt():
    # All pages are needed, and the copied last one would be one too many.
    engine, runner = make_engine(prefix_cache_bytes=100_000, num_pages=7, max_positions=64)
    prompt = page(0)
    results = [ask(engine, prompt, max_tokens=13) for _ in range(3)]
    assert len({result.ids for result in results}) == 1
    check_empty(engine, runner)


def test_a_preempted_request_comes_back_through_its_own_prefix():
    engine, runner = make_engine(prefix_cache_bytes=100_000, num_pages=14, max_requests=2, max_positions=64)
    asked = {}
    for seed in range(8):
        prompt, sampling = (
            page(seed),
            SamplingParams(max_tokens=24, ignore_eos=True, temperature=0.5, seed=seed),
        )
        asked[engine.submit(prompt, sampling)] = prompt, sampling
    results = run_checked(engine)
    for name, request in asked.items():
        check_answer(results[name], *request, engine)
    again = [r for r in results.values() if r.num_preemptions]
    assert again
    assert any(result.num_cached > 0 for result in again)
    check_empty(engine, runner)


def test_two_equal_pages_at_once_keep_one_entry():
    engine, runner = make_engine(prefix_cache_bytes=100_000)
    prompt = page(0)
    sampling = SamplingParams(max_tokens=6, ignore_eos=True)
    names = [engine.submit(prompt, sampling) for _ in range(3)]
    results = run_checked(engine)
    assert len({results[name].ids for name in names}) == 1
    assert len(engine.prefixes) == 2
    check_answer(results[names[0]], prompt, sampling, engine)
    check_empty(engine, runner)


def test_writing_into_a_shared_page_would_be_seen():
    """Without the copy, the second request would write into the page that the third one begins with."""
    engine, runner = make_engine(prefix_cache_bytes=100_000)
    prompt = page(0)
    ask(engine, prompt)
    runner.copy_pages = lambda copies: None
    engine.submit(prompt, sampling := SamplingParams(max_tokens=12, ignore_eos=True))
    (result,) = run_checked(engine).values()
    with pytest.raises(AssertionError):
        check_answer(result, prompt, sampling, engine)


def test_a_state_that_is_not_restored_would_be_seen():
    engine, runner = make_engine(prefix_cache_bytes=100_000)
    prompt = page(0)
    ask(engine, prompt)
    runner.restore = lambda slot, snapshot: None
    engine.submit(prompt, sampling := SamplingParams(max_tokens=12, ignore_eos=True))
    (result,) = run_checked(engine).values()
    with pytest.raises(AssertionError):
        check_answer(result, prompt, sampling, engine)
