"""Guesses change how many steps an answer takes and nothing else."""

import numpy as np
import pytest
import torch

from ocrquant.adapters import model_folder
from ocrquant.engine.drafting import NgramDrafts, num_accepted
from ocrquant.engine.loading import RuntimeSettings, load_runtime
from ocrquant.engine.request import FinishReason
from ocrquant.engine.sampling import SamplingParams
from ocrquant.errors import QueueFullError
from tests.engine.fakes import VOCABULARY, expected_answer
from tests.engine.reading import prompts, read
from tests.engine.test_engine import check_answer, check_empty, make_engine, requests, run_checked


class Oracle:
    """Guesses the right tokens, each with a probability, of answers that are known.

    Args:
        right: Probability that a token is guessed right.
        silent: Probability that a request gets no guess at all.
        drafter: Whether the runner keeps the keys of a drafter too, which changes every answer.
    """

    def __init__(self, right, *, silent=0.2, seed=0, drafter=False):
        self.right, self.silent, self.rng = right, silent, np.random.default_rng(seed)
        self.drafter = drafter
        self.answers, self.alone = {}, ()

    def propose(self, asked, most, tables):
        return [self._guess(request, most) for request in asked]

    def _guess(self, request, most):
        if self.rng.random() < self.silent:
            return ()
        place = len(request.output_ids)
        ahead = self._answer(request)[place : place + int(self.rng.integers(1, most + 1))]
        # Behind the end whatever comes is wrong.
        ahead = [*ahead, *self.rng.integers(0, VOCABULARY, int(self.rng.integers(0, 3))).tolist()][:most]
        keep = self.rng.random(len(ahead)) < self.right
        return tuple(t if k else (t + 1) % VOCABULARY for t, k in zip(ahead, keep, strict=True))

    def _answer(self, request):
        if request.id not in self.answers:
            sampling = SamplingParams(
                **{
                    name: getattr(request.sampling, name)
                    for name in ("temperature", "top_p", "seed", "ignore_eos")
                }
                | {"max_tokens": 1000}
            )
            self.answers[request.id] = expected_answer(
                request.prompt, sampling, request.limit, drafter=self.drafter
            )[0]
        return self.answers[request.id]


@pytest.mark.parametrize(
    ("drafts", "chosen", "count"),
    [((5, 6), (5, 6, 7), 2), ((5, 6), (5, 7, 6), 1), ((5, 6), (6, 6, 7), 0), ((), (1,), 0)],
)
def test_guesses_count_up_to_the_first_wrong_one(drafts, chosen, count):
    assert num_accepted(drafts, chosen) == count


@pytest.mark.parametrize(
    ("known", "guess"),
    [
        ([1, 2, 3, 4, 1, 2, 3], (4, 1, 2, 3)),
        ([1, 2, 3, 4, 9, 2, 3, 5, 2, 3], (5, 2, 3)),  # the latest place
        ([9, 2, 3, 7, 1, 2, 3, 8, 9, 2, 3], (7, 1, 2, 3, 8)),  # more that agrees comes first
        ([7, 7, 7, 7], (7,)),
        ([1, 2, 3, 4], ()),
        ([1], ()),
        ([], ()),
    ],
)
def test_what_came_before_comes_again(known, guess):
    request = type("Known", (), {"output_ids": known})()
    (found,) = NgramDrafts(longest=3, shortest=2).propose([request], 5, None)
    assert found == guess


@pytest.mark.parametrize("window", [2, 5, 16])
@pytest.mark.parametrize("right", [0.0, 0.7, 1.0])
def test_every_answer_is_that_without_guesses(window, right):
    engine, runner = make_engine(drafts=Oracle(right), max_window=window, max_step_tokens=128)
    asked = {engine.submit(*request): request for request in requests(40, seed=3)}
    results = run_checked(engine)
    for name, request in asked.items():
        check_answer(results[name], *request, engine)
    counts = [result.drafts for result in results.values()]
    guessed, accepted = sum(c.num_guessed for c in counts), sum(c.num_accepted for c in counts)
    assert guessed > 100
    # Behind an end a wrong guess may happen to be the end token.
    assert accepted < 0.05 * guessed if right == 0 else accepted > 0.1 * guessed
    assert any(shape.drafted and shape.decode and shape.prefill for shape in runner.steps)
    check_empty(engine, runner)


def test_right_guesses_save_steps():
    steps = {}
    for name, drafts in (("alone", None), ("guessed", Oracle(1.0, silent=0.0))):
        engine, runner = make_engine(drafts=drafts, max_window=8, max_requests=1)
        engine.submit(*requests(1, seed=4, max_tokens=33, ignore_eos=True)[0])
        run_checked(engine)
        steps[name] = len(runner.steps)
    assert steps["alone"] >= 33
    assert steps["guessed"] <= 33 - 16


@pytest.mark.parametrize("drafter_pages", [0, 34])
def test_guesses_of_preempted_requests(drafter_pages):
    engine, runner = make_engine(
        num_pages=30, drafter_pages=drafter_pages, max_positions=96, max_window=6, max_step_tokens=64,
        drafts=Oracle(0.8, drafter=drafter_pages > 0),
    )  # fmt: skip
    asked = {engine.submit(*request): request for request in requests(60, seed=1, ignore_eos=True)}
    results = run_checked(engine)
    for name, request in asked.items():
        check_answer(results[name], *request, engine)
    assert sum(result.num_preemptions for result in results.values()) > 5
    check_empty(engine, runner)


def test_ends_stops_and_limits_inside_a_window():
    engine, _ = make_engine(drafts=Oracle(1.0, silent=0.0), max_window=16, max_step_tokens=128)
    asked = {}
    for number, (prompt, _) in enumerate(requests(40, seed=6)):
        stop = ("AB", "C") if number % 2 else ()
        sampling = SamplingParams(max_tokens=1 + number % 13, stop=stop, stop_at_loop=True)
        asked[engine.submit(prompt, sampling)] = prompt, sampling
    results = run_checked(engine)
    for name, request in asked.items():
        check_answer(results[name], *request, engine)
    reasons = {result.finish_reason for result in results.values()}
    assert {FinishReason.END, FinishReason.STOP, FinishReason.LENGTH} <= reasons


@pytest.mark.parametrize(("drafter_pages", "count"), [(0, 300), (34, 2000)])
def test_many_arrivals_cancellations_and_preemptions_with_guesses(drafter_pages, count):
    engine, runner = make_engine(
        num_pages=30, drafter_pages=drafter_pages, max_positions=96,
        drafts=Oracle(0.7, drafter=drafter_pages > 0), max_window=4, max_step_tokens=48, queue_limit=12,
        prefix_cache_bytes=4000,
    )  # fmt: skip
    draw, asked, results, todo = np.random.default_rng(7), {}, {}, requests(count, seed=8)
    while todo or engine.has_work:
        while todo and draw.random() < 0.6:
            try:
                asked[engine.submit(*todo[-1])] = todo[-1]
            except QueueFullError:
                break
            todo.pop()
        if asked and draw.random() < 0.05:
            engine.cancel(list(asked)[int(draw.integers(len(asked)))])
        for output in engine.step():
            if output.result is not None:
                results[output.id] = output.result
                if output.result.finish_reason is not FinishReason.CANCELLED:
                    check_answer(output.result, *asked[output.id], engine)
                del asked[output.id]
        engine.check_integrity()
    assert len(results) == count
    assert sum(result.num_preemptions for result in results.values()) > count / 100
    assert sum(result.drafts.num_accepted for result in results.values()) > count
    check_empty(engine, runner)


class Known:
    """Guesses from answers of the model itself, with faults."""

    def __init__(self, answers, seed=0):
        self.answers, self.rng, self.alone = answers, np.random.default_rng(seed), ()

    def propose(self, asked, most, tables):
        found = []
        for request in asked:
            answer, place = self.answers[request.prompt], len(request.output_ids)
            guess = np.array(answer[place : place + most])
            wrong = self.rng.random(len(guess)) < 0.15
            found.append(tuple(np.where(wrong, 2, guess).tolist()))
        return found


@pytest.mark.parametrize(
    ("state", "dtype", "window", "num_pages"),
    [
        # With native kernels and native states a row has the same bits in a window and alone.
        ("native", "bf16", 4, None),
        ("native", "bf16", 16, None),
        ("native", "bf16", 8, 40),
        # Records are folded at other times than without guesses, which rounds differently; not so in text.
        ("replay", "fp32", 4, None),
        ("replay", "fp32", 16, 40),
    ],
)
def test_the_shipped_model_reads_the_same_with_guesses(state, dtype, window, num_pages):
    settings = {"max_requests": 4, "max_length": 400, "state": state, "dtype": dtype}
    plain = load_runtime(model_folder("pico"), RuntimeSettings(**settings))
    asked = [*prompts(plain, "line", 5), *prompts(plain, "block", 2 if dtype == "bf16" else 0)]
    limit = 120 if dtype == "bf16" else 40
    expected = read(plain, asked, max_tokens=limit)
    guessing = load_runtime(
        model_folder("pico"),
        RuntimeSettings(**settings, speculation="ngram", window=window, num_pages=num_pages),
    )
    guessing.engine.scheduler.drafts = Known(dict(zip(asked, expected, strict=True)))
    found = read(guessing, asked, max_tokens=limit)
    assert found == expected
    pool = guessing.runner.caches.state
    pool.check_integrity(range(1, pool.num_slots))


@pytest.mark.parametrize("state", ["native", "replay"])
def test_states_after_every_commit_are_those_without_guesses(state):
    settings = {"max_requests": 1, "max_length": 256, "state": state, "dtype": "fp64"}
    plain = load_runtime(model_folder("pico"), RuntimeSettings(**settings))
    (prompt,) = prompts(plain, "line", 1)
    states = {}

    def step(runtime, store):
        engine, pool = runtime.engine, runtime.runner.caches.state
        engine.submit(prompt, SamplingParams(max_tokens=24, ignore_eos=True))
        while engine.has_work:
            engine.step()
            for request in engine.scheduler.running:
                snapshot = (
                    pool.snapshot(request.slot, folded=True)
                    if state == "replay"
                    else pool.snapshot(request.slot)
                )
                store[request.num_computed] = {
                    k: v.clone() for k, v in snapshot.tensors.items() if k in ("state", "tail")
                }

    step(plain, states)
    expected = read(plain, [prompt], max_tokens=24, ignore_eos=True)
    guessing = load_runtime(model_folder("pico"), RuntimeSettings(**settings, speculation="ngram", window=6))
    guessing.engine.scheduler.drafts = Known({prompt: expected[0]})
    found = {}
    step(guessing, found)
    assert 3 < len(found) < len(states)
    for place, tensors in found.items():
        for name, tensor in tensors.items():
            torch.testing.assert_close(tensor, states[place][name], rtol=1e-9, atol=1e-11)
