"""The loop: every answer is that of the request alone, whatever else runs, waits, ends or is thrown out."""

from collections import Counter

import numpy as np
import pytest

from ocrquant.engine.config import EngineConfig
from ocrquant.engine.engine import Engine
from ocrquant.engine.prompt import text_prompt
from ocrquant.engine.request import FinishReason
from ocrquant.engine.sampling import SamplingParams
from ocrquant.errors import EngineError, PageSizeError, QueueFullError, RequestError
from tests.engine.fakes import END, PIECES, FakeRunner, document_prompt, expected_answer

ROOMY = {"max_positions": 128, "num_pages": 400, "page_size": 4, "max_requests": 8, "max_step_tokens": 32}


def make_engine(*, poison=True, drafts=None, **settings):
    config = EngineConfig(**ROOMY | settings)
    runner = FakeRunner(config)
    engine = Engine(config, runner, (END,), PIECES, drafts)
    runner.pools = engine.pools if poison else None
    return engine, runner


def run_checked(engine):
    """Results of all requests, with an integrity check after every step."""
    results, texts, ids = {}, {}, {}
    while engine.has_work:
        for output in engine.step():
            texts[output.id] = texts.get(output.id, "") + output.new_text
            ids[output.id] = ids.get(output.id, ()) + output.new_ids
            if output.finished:
                results[output.id] = output.result
        engine.check_integrity()
    for name, result in results.items():
        assert result.text.endswith(texts[name])  # a test may have made steps before
        assert result.ids[len(result.ids) - len(ids[name]) :] == ids[name]
        assert len(result.gaps) == len(result.ids)
    return results


def check_empty(engine, runner):
    if engine.prefixes is not None:
        for digest in list(engine.prefixes._entries):
            engine.prefixes._drop(digest)
        assert engine.prefixes.nbytes == 0
    engine.pools.check_integrity([])
    for cache in engine.pools.caches:
        assert cache.pool.num_free == cache.pool.num_pages
    assert engine.pools.slots.num_free == engine.config.usable_slots
    assert not runner.images


def check_answer(result, prompt, sampling, engine):
    limit = min(sampling.max_tokens, engine.config.max_positions - len(prompt))
    wanted = expected_answer(prompt, sampling, limit, drafter=engine.pools.drafter is not None)
    assert (list(result.ids), result.text, result.finish_reason) == wanted


def requests(count, seed=0, **settings):
    rng = np.random.default_rng(seed)
    found = []
    for number in range(count):
        shape = (int(rng.integers(1, 4)), int(rng.integers(1, 5)))
        prompt = document_prompt(
            rng, before=int(rng.integers(0, 6)), image=shape, after=int(rng.integers(1, 9))
        )
        warm = {"temperature": 0.7, "top_p": 0.9, "seed": number << 33} if number % 3 == 0 else {}
        sampling = SamplingParams(**{"max_tokens": int(rng.integers(1, 40)), **warm, **settings})
        found.append((prompt, sampling))
    return found


@pytest.mark.parametrize("drafter_pages", [0, 420])
@pytest.mark.parametrize("policy", ["fcfs", "shortest"])
def test_every_answer_is_that_of_the_request_alone(policy, drafter_pages):
    engine, runner = make_engine(policy=policy, drafter_pages=drafter_pages)
    asked = {engine.submit(*request): request for request in requests(60)}
    results = run_checked(engine)
    for name, request in asked.items():
        check_answer(results[name], *request, engine)
    assert {r.finish_reason for r in results.values()} == {FinishReason.END, FinishReason.LENGTH}
    assert max(shape.decode for shape in runner.steps) >= 6
    assert any(shape.decode and shape.prefill for shape in runner.steps)
    check_empty(engine, runner)


@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 5, 7, 8, 16, 31, 64])
def test_chunks_of_any_size_give_the_same_answer(chunk):
    engine, runner = make_engine(max_step_tokens=chunk, max_requests=1)
    asked = {engine.submit(*request): request for request in requests(6)}
    for name, result in run_checked(engine).items():
        check_answer(result, *asked[name], engine)
    longest = max(len(prompt) for prompt, _ in asked.values())
    assert max(shape.prefill_rows for shape in runner.steps) == min(chunk, longest)


@pytest.mark.parametrize("drafter_pages", [0, 34])
def test_preempted_requests_lose_no_token(drafter_pages):
    engine, runner = make_engine(num_pages=30, drafter_pages=drafter_pages, max_positions=96)
    asked = {engine.submit(*request): request for request in requests(60, seed=1, ignore_eos=True)}
    results = run_checked(engine)
    for name, request in asked.items():
        check_answer(results[name], *request, engine)
    assert sum(result.num_preemptions for result in results.values()) > 10
    assert runner.encoded > len(asked)  # images were encoded again
    check_empty(engine, runner)


def test_a_request_preempted_within_its_image_encodes_it_again():
    engine, runner = make_engine(num_pages=8, max_positions=32, max_requests=2, max_step_tokens=2)
    first = text_prompt([1, 2, 3], 3), SamplingParams(max_tokens=29, ignore_eos=True)
    second = (
        document_prompt(np.random.default_rng(0), image=(3, 4)),
        SamplingParams(max_tokens=9, ignore_eos=True),
    )
    names = [engine.submit(*first), engine.submit(*second)]
    while not engine.scheduler.num_preemptions:
        computed = [request.num_computed for request in engine.scheduler.running]
        engine.step()
        engine.check_integrity()
    image = second[0].images[0]
    assert image.start < computed[1] < image.end
    assert not runner.images
    results = run_checked(engine)
    for name, request in zip(names, (first, second), strict=True):
        check_answer(results[name], *request, engine)
    assert runner.encoded == 2
    check_empty(engine, runner)


def test_pools_that_hold_one_request_serve_all():
    engine, runner = make_engine(num_pages=16, max_positions=64)
    asked = {engine.submit(*request): request for request in requests(12, seed=2, max_tokens=20)}
    for name, result in run_checked(engine).items():
        check_answer(result, *asked[name], engine)
    check_empty(engine, runner)


NUM_ARRIVALS = 10_000


@pytest.mark.slow
def test_ten_thousand_arrivals_cancellations_and_preemptions_leak_nothing():
    rng = np.random.default_rng(3)
    settings = {"num_pages": 60, "drafter_pages": 64, "page_size": 2, "max_positions": 64, "queue_limit": 24}
    engine, runner = make_engine(**settings, max_requests=12, num_slots=11, prefix_cache_bytes=4000)
    pages = [
        document_prompt(
            rng, before=int(rng.integers(0, 5)), image=(int(rng.integers(1, 4)), 2),
            after=int(rng.integers(1, 9)), text=([5, 6, 7, 8], [9, 9, 1, 2])[n % 2],
        )
        for n in range(40)
    ]  # fmt: skip
    settings = [
        {"max_tokens": 32, "temperature": 0.5, "seed": seed, "ignore_eos": seed > 0} for seed in range(4)
    ]
    answers = {
        (page, number): expected_answer(pages[page], SamplingParams(**settings[number]), 32, drafter=True)
        for page in range(len(pages))
        for number in range(len(settings))
    }
    asked, results, refused, cancelled = {}, {}, 0, set()
    while len(asked) < NUM_ARRIVALS or engine.has_work:
        for _ in range(int(rng.poisson(1.5)) if len(asked) < NUM_ARRIVALS else 0):
            page, number = int(rng.integers(len(pages))), int(rng.integers(len(settings)))
            sampling = SamplingParams(
                **settings[number] | {"max_tokens": min(32, 1 + int(rng.exponential(6)))}
            )
            try:
                asked[engine.submit(pages[page], sampling)] = page, number, sampling.max_tokens
            except QueueFullError:
                refused += 1
        if rng.random() < 0.15 and engine._live:
            name = list(engine._live)[rng.integers(len(engine._live))]
            assert engine.cancel(name)
            cancelled.add(name)
        for output in engine.step():
            if output.finished:
                results[output.id] = output.result
        engine.check_integrity()
    assert results.keys() == asked.keys()
    for name, (page, number, max_tokens) in asked.items():
        if name in cancelled:
            assert results[name].finish_reason is FinishReason.CANCELLED
        else:
            assert list(results[name].ids) == answers[page, number][0][:max_tokens]
    counts = (
        refused,
        len(cancelled),
        engine.scheduler.num_preemptions,
        engine.prefixes.num_hits,
        runner.copied,
    )
    assert min(counts) > 100, counts
    check_empty(engine, runner)


def test_planted_stale_page_changes_a_text():
    engine, runner = make_engine()
    asked = {engine.submit(*request): request for request in requests(4, ignore_eos=True)}
    engine.step()
    engine.step()
    page = int(engine.pools.kv.table.pages[engine.scheduler.running[0].slot, 0])
    runner.kv[page * 4] ^= 1
    results = run_checked(engine)
    wrong = [
        name
        for name, (prompt, sampling) in asked.items()
        if list(results[name].ids) != expected_answer(prompt, sampling, sampling.max_tokens)[0]
    ]
    assert len(wrong) == 1


def test_planted_wrong_slot_changes_a_text():
    engine, runner = make_engine()
    prompt, sampling = requests(1, ignore_eos=True)[0]
    name = engine.submit(prompt, sampling)
    engine.step()
    runner.state[engine.scheduler.running[0].slot] ^= 1
    assert list(run_checked(engine)[name].ids) != expected_answer(prompt, sampling, sampling.max_tokens)[0]


def keep_pages(engine):
    engine.pools.give = lambda holding: None


def keep_running(engine):
    engine.scheduler.finish = lambda request: None


def lose_a_waiting_one(engine):
    engine.scheduler.queue.pop()


@pytest.mark.parametrize("plant", [keep_pages, keep_running, lose_a_waiting_one])
def test_planted_leak_is_seen_in_the_step_in_which_it_happens(plant):
    engine, _ = make_engine(max_requests=2)
    for _ in range(4):
        engine.submit(text_prompt([1, 2], 3), SamplingParams(max_tokens=3, ignore_eos=True))
    engine.step()
    engine.check_integrity()
    plant(engine)

    def go_on():
        for _ in range(3):
            engine.step()
            engine.check_integrity()

    with pytest.raises(AssertionError):
        go_on()


def test_a_finished_request_leaves_and_a_waiting_one_enters_in_the_next_step():
    engine, _ = make_engine(max_requests=2)
    first = engine.submit(text_prompt([1, 2, 3], 3), SamplingParams(max_tokens=2, ignore_eos=True))
    engine.submit(text_prompt([1, 2, 4], 3), SamplingParams(max_tokens=9, ignore_eos=True))
    engine.submit(text_prompt([1, 2, 5], 3), SamplingParams(max_tokens=9, ignore_eos=True))
    engine.step()
    assert engine.last_step.shape.prefill == 2
    assert [output.id for output in engine.step() if output.finished] == [first]
    engine.step()
    assert (engine.last_step.shape.decode, engine.last_step.shape.prefill) == (1, 1)


def test_whoever_does_not_fit_is_asked_again_when_somebody_has_left():
    engine, _ = make_engine(num_pages=12, max_positions=48, max_requests=3)
    tries = []
    enter = engine.scheduler._enter
    engine.scheduler._enter = lambda request, draft: tries.append(request.id) or enter(request, draft)
    for length, answer in ((16, 8), (4, 4), (28, 2)):
        engine.submit(text_prompt([1] * length, 3), SamplingParams(max_tokens=answer, ignore_eos=True))
    results = run_checked(engine)
    assert tries == ["0", "1", "2", "2", "2"]  # at first, after the second has left, after the first has
    assert [len(results[name].ids) for name in "012"] == [8, 4, 2]


def test_queue_limit_refuses_clearly_and_counts_only_those_that_wait():
    engine, _ = make_engine(max_requests=1, queue_limit=2)
    ask = text_prompt([1, 2], 3), SamplingParams(max_tokens=5, ignore_eos=True)
    engine.submit(*ask)
    engine.step()
    engine.submit(*ask)
    name = engine.submit(*ask)
    with pytest.raises(QueueFullError, match=r"expected fewer than 2 waiting requests, got 2; .*queue_limit"):
        engine.submit(*ask)
    assert engine.cancel(name)
    engine.submit(*ask)
    reasons = Counter(result.finish_reason for result in run_checked(engine).values())
    assert reasons == {FinishReason.LENGTH: 3, FinishReason.CANCELLED: 1}


def test_cancellation_waiting_running_preempted_and_over():
    engine, runner = make_engine(num_pages=12, max_requests=3, max_positions=48)
    ask = [
        (text_prompt(list(range(1, 13)), 3), SamplingParams(max_tokens=30, ignore_eos=True, seed=i))
        for i in range(5)
    ]
    names = [engine.submit(*request) for request in ask]
    while not any(r.num_preemptions for r in engine._live.values()):
        engine.step()
        engine.check_integrity()
    preempted = next(r.id for r in engine._live.values() if r.num_preemptions)
    running, waiting = engine.scheduler.running[0].id, names[-1]
    assert len({preempted, running, waiting}) == 3
    for name in (preempted, running, waiting):
        assert engine.cancel(name)
        engine.check_integrity()
        assert not engine.cancel(name)
    results = run_checked(engine)
    ended = {name for name, result in results.items() if result.finish_reason is FinishReason.CANCELLED}
    assert ended == {preempted, running, waiting}
    for name in set(names) - ended:
        check_answer(results[name], *ask[names.index(name)], engine)
    assert not engine.cancel(names[0])
    check_empty(engine, runner)


def test_cancelling_the_only_request_still_gives_its_output():
    engine, _ = make_engine()
    name = engine.submit(text_prompt([1], 3), SamplingParams())
    engine.cancel(name)
    assert engine.has_work
    (output,) = engine.step()
    assert output.result.finish_reason is FinishReason.CANCELLED
    assert not engine.has_work
    assert engine.step() == []


@pytest.mark.parametrize(
    ("length", "max_tokens", "error", "match"),
    [
        (128, 1, PageSizeError, "at most 127 tokens, got 128 tokens; lower the resolution"),
        (60, 30, RequestError, "at most 80 tokens, all that the pages hold, got a prompt of 60 .* up to 30"),
        (81, 1, RequestError, "num_pages"),
    ],
)
def test_what_can_never_fit_is_refused_at_once(length, max_tokens, error, match):
    engine, _ = make_engine(num_pages=20)
    with pytest.raises(error, match=match):
        engine.submit(text_prompt([1] * length, 3), SamplingParams(max_tokens=max_tokens))
    assert not engine.has_work


@pytest.mark.parametrize(("length", "max_tokens"), [(51, 30), (80, 1)])
def test_what_just_fits_is_served(length, max_tokens):
    engine, _ = make_engine(num_pages=20)
    engine.submit(text_prompt([1] * length, 3), SamplingParams(max_tokens=max_tokens, ignore_eos=True))
    (result,) = run_checked(engine).values()
    assert len(result.ids) == max_tokens


def test_the_longest_sequence_ends_an_answer_and_says_so():
    engine, _ = make_engine(max_positions=20)
    ask = text_prompt([3] * 12, 3), SamplingParams(max_tokens=100, ignore_eos=True)
    name = engine.submit(*ask)
    result = run_checked(engine)[name]
    assert result.finish_reason is FinishReason.POSITIONS
    assert len(result.ids) == 8
    check_answer(result, *ask, engine)


@pytest.mark.parametrize(
    ("ask", "match"),
    [
        ((text_prompt([1], 2), SamplingParams()), "3 axes of positions, got 2"),
        ((text_prompt([1], 3), SamplingParams(), "same"), "a name that no live request has"),
    ],
)
def test_requests_that_do_not_suit_are_refused(ask, match):
    engine, _ = make_engine()
    engine.submit(text_prompt([1], 3), SamplingParams(), "same")
    with pytest.raises(RequestError, match=match):
        engine.submit(*ask)


def test_stop_strings_need_a_vocabulary():
    config = EngineConfig(**ROOMY)
    with pytest.raises(RequestError, match="stop strings"):
        Engine(config, FakeRunner(config), (END,)).submit(text_prompt([1], 3), SamplingParams(stop=("x",)))


def test_stop_strings_across_steps():
    ask = text_prompt([4, 5, 6], 3)
    engine, _ = make_engine()
    name = engine.submit(ask, SamplingParams(max_tokens=30, ignore_eos=True))
    text = run_checked(engine)[name].text
    for begin, end in ((3, 4), (5, 8), (11, 17), (0, 2)):
        sampling = SamplingParams(max_tokens=30, ignore_eos=True, stop=("never", text[begin:end]))
        name = engine.submit(ask, sampling)
        result = run_checked(engine)[name]
        assert result.finish_reason is FinishReason.STOP
        assert result.text == text[: text.find(text[begin:end])]
        check_answer(result, ask, sampling, engine)


def test_seeds_decide_and_nothing_else_does():
    prompt, _ = requests(1)[0]
    texts = {}
    for size in (1, 8):
        engine, _ = make_engine(max_requests=size)
        names = {
            engine.submit(
                prompt, SamplingParams(temperature=1, seed=seed, max_tokens=20, ignore_eos=True)
            ): seed
            for seed in (0, 1, 1, 1 << 31, 1 << 32, (1 << 64) - 1)
        }
        results = run_checked(engine)
        texts[size] = {name: results[name].text for name in names}
        assert len(set(texts[size].values())) == 5
        assert texts[size]["1"] == texts[size]["2"]
    assert texts[1] == texts[8]


class ConstantRunner(FakeRunner):
    """Always the same token."""

    def run(self, plan):
        sampled = super().run(plan)
        sampled.tokens[:] = 7
        return sampled


@pytest.mark.parametrize(("stop_at_loop", "length"), [(True, 96), (False, 120)])
def test_a_loop_ends_where_the_reference_ends_it(stop_at_loop, length):
    config = EngineConfig(**ROOMY | {"max_positions": 256})
    engine = Engine(config, ConstantRunner(config), (END,), PIECES)
    engine.submit(text_prompt([1], 3), SamplingParams(max_tokens=120, stop_at_loop=stop_at_loop))
    (result,) = engine.run_until_done().values()
    assert len(result.ids) == length
    assert result.finish_reason is (FinishReason.LOOP if stop_at_loop else FinishReason.LENGTH)


def test_shortest_first_and_first_come_first_served():
    lengths = [20, 4, 12, 8]
    orders = {}
    for policy in ("fcfs", "shortest"):
        engine, _ = make_engine(policy=policy, max_requests=1)
        for length in lengths:
            engine.submit(text_prompt([2] * length, 3), SamplingParams(max_tokens=2, ignore_eos=True))
        order = []
        while engine.has_work:
            order += [lengths[int(output.id)] for output in engine.step() if output.finished]
        orders[policy] = order
    assert orders == {"fcfs": [20, 4, 12, 8], "shortest": [4, 8, 12, 20]}


def test_shortest_first_starves_nobody():
    engine, _ = make_engine(policy="shortest", max_requests=1, max_step_tokens=128)
    engine.submit(text_prompt([2] * 100, 3), SamplingParams(max_tokens=1), "long")
    for _ in range(200):
        engine.submit(text_prompt([2] * 4, 3), SamplingParams(max_tokens=1))
        engine.submit(text_prompt([2] * 4, 3), SamplingParams(max_tokens=1))
        if any(output.id == "long" for output in engine.step()):
            break
    assert 5 < engine.scheduler.num_steps < 60


def test_statistics_of_a_step():
    engine, _ = make_engine(prefix_cache_bytes=10_000)
    rng = np.random.default_rng(0)
    prompt = document_prompt(rng, before=5)
    engine.submit(prompt, SamplingParams(max_tokens=4, ignore_eos=True))
    engine.step()
    step = engine.last_step
    assert (step.shape.prefill_rows, step.shape.prefill, step.shape.logit_rows) == (5, 1, 0)
    assert (step.num_running, step.num_waiting, step.num_prefix_hits, step.num_preemptions) == (1, 0, 0, 0)
    assert min(step.schedule_us, step.run_us, step.postprocess_us) > 0
    engine.run_until_done()
    engine.submit(prompt, SamplingParams(max_tokens=4, ignore_eos=True))
    engine.step()
    assert (engine.last_step.num_prefix_hits, engine.last_step.shape.prefill_rows) == (1, 1)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_after_a_failed_step_an_engine_takes_no_more(error, monkeypatch):
    engine, runner = make_engine()
    (prompt, sampling), *_ = requests(1)
    engine.submit(prompt, sampling, "a")

    def failing(plan):
        FakeRunner.run(runner, plan)  # states have moved on
        raise error("in the middle")

    monkeypatch.setattr(runner, "run", failing)
    with pytest.raises(error):
        engine.step()
    monkeypatch.undo()
    for go_on in (engine.step, lambda: engine.submit(prompt, sampling)):
        with pytest.raises(EngineError, match=f"no step that failed, got {error.__name__}"):
            go_on()
    assert engine.cancel("a")


def test_a_made_name_avoids_those_that_callers_chose():
    engine, _ = make_engine()
    (prompt, sampling), *_ = requests(1)
    names = [engine.submit(prompt, sampling, "1"), *(engine.submit(prompt, sampling) for _ in range(2))]
    assert len(set(names)) == 3
    assert run_checked(engine).keys() == set(names)
    with pytest.raises(RequestError, match="request_id"):
        engine.submit(prompt, sampling, 5)
