"""Guesses change nothing that is read: chances exactly, texts token by token, states after every commit."""

import itertools

import numpy as np
import pytest
import torch

from ocrquant.engine.config import EngineConfig
from ocrquant.engine.engine import Engine
from ocrquant.engine.loading import RuntimeSettings, load_runtime
from ocrquant.engine.plan import Sampled
from ocrquant.engine.prompt import text_prompt
from ocrquant.engine.request import FinishReason
from ocrquant.engine.sampling import SamplingParams
from ocrquant.errors import QueueFullError
from tests.engine.drafters import SLIDING, make_drafter

VOCABULARY, LENGTH = 5, 3


class Chances:
    """A runner whose tokens are drawn from tables by given numbers: the inverse of the cumulative sum.

    Args:
        seed: Of the tables, one distribution for each beginning of an answer.

    Attributes:
        numbers: The number in [0, 1) that each place of the answer is drawn with.
    """

    page_bytes = 1

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        lengths = range(LENGTH + 4)
        self.tables = {
            known: rng.dirichlet(np.ones(VOCABULARY))
            for length in lengths[:LENGTH]
            for known in itertools.product(range(VOCABULARY), repeat=length)
        }
        self.numbers = ()

    def check(self, prompt):
        pass

    def forget(self, request):
        pass

    def commit(self, plan, accepted):
        pass

    def _draw(self, known):
        if len(known) >= LENGTH:
            return 0  # behind the end of the answer nothing counts
        edges = np.cumsum(self.tables[known])
        return min(int(np.searchsorted(edges, self.numbers[len(known)], side="right")), VOCABULARY - 1)

    def run(self, plan):
        tokens = []
        for window in plan.drafted:
            known = tuple(window.request.output_ids)
            tokens += [self._draw(known + window.drafts[:row]) for row in range(plan.shape.window)]
        tokens += [self._draw(tuple(request.output_ids)) for request in plan.sampled]
        return Sampled(np.array(tokens, np.int32), np.zeros(len(tokens), np.float32))


class Table:
    """Drafts that depend on what is known, and on nothing else."""

    def __init__(self, choose):
        self.choose, self.alone = choose, ()

    def propose(self, requests, most, tables):
        found = []
        for request in requests:
            known = tuple(request.output_ids)
            for _ in range(most):
                known += (self.choose(known),)
            found.append(known[len(known) - most :])
        return found


@pytest.mark.parametrize("drafter", ["likeliest", "unlikeliest", "any"])
def test_every_answer_is_as_likely_as_the_target_says(drafter):
    runner = Chances(seed=3)
    pick = {
        "likeliest": lambda known: int(runner.tables.get(known, np.ones(1)).argmax()),
        "unlikeliest": lambda known: int(runner.tables.get(known, np.ones(1)).argmin()),
        "any": lambda known: (sum(known) * 7 + len(known)) % VOCABULARY,
    }
    config = EngineConfig(
        max_positions=32, num_pages=8, page_size=4, max_requests=1, max_step_tokens=8, max_window=4
    )
    engine = Engine(config, runner, (), None, Table(pick[drafter]))
    # Between neighbouring edges of all tables of a place nothing that is drawn there can change.
    cells = []
    for place in range(LENGTH):
        edges = [np.cumsum(table)[:-1] for known, table in runner.tables.items() if len(known) == place]
        edges = np.unique(np.concatenate([[0.0, 1.0], *edges]))
        cells.append(list(zip((edges[:-1] + edges[1:]) / 2, np.diff(edges), strict=True)))
    found, accepted = dict.fromkeys(itertools.product(range(VOCABULARY), repeat=LENGTH), 0.0), 0
    for chosen in itertools.product(*cells):
        runner.numbers = [middle for middle, _ in chosen]
        name = engine.submit(text_prompt([1], 3), SamplingParams(max_tokens=LENGTH, ignore_eos=True))
        result = engine.run_until_done()[name]
        found[result.ids] += float(np.prod([width for _, width in chosen]))
        accepted += result.drafts.num_accepted
    assert accepted > 0
    for answer, probability in found.items():
        wanted = np.prod([runner.tables[answer[:place]][answer[place]] for place in range(LENGTH)])
        assert abs(probability - wanted) < 1e-12


class Corrected:
    """A running drafter some of whose guesses are put right, or made wrong.

    Args:
        inner: The drafter.
        answers: What the target will say, by prompt.
        right: Probability that a guess is put right; otherwise it is made wrong. None leaves all as they are.
        seed: Of the choice.
    """

    def __init__(self, inner, answers, right, seed=0):
        self.inner, self.answers, self.right = inner, answers, right
        self.rng, self.alone = np.random.default_rng(seed), ()

    def propose(self, requests, most, tables):
        guesses = self.inner.propose(requests, most, tables)
        if self.right is None:
            return guesses
        found = []
        for request, guess in zip(requests, guesses, strict=True):
            place = len(request.output_ids)
            truth = [*self.answers[request.prompt][place : place + most], *guess][:most]
            keep = self.rng.random(most) < self.right
            found.append(tuple(t if k else (t + 1) % 300 for t, k in zip(truth, keep, strict=True)))
        return found


def some_prompts(count, seed=0):
    rng = np.random.default_rng(seed)
    return [text_prompt(rng.integers(9, 300, int(rng.integers(3, 40))).tolist(), 3) for _ in range(count)]


def answer(runtime, prompts, sampling):
    names = [runtime.engine.submit(prompt, sampling) for prompt in prompts]
    results = runtime.engine.run_until_done()
    runtime.engine.check_integrity()
    return [list(results[name].ids) for name in names], results


ARMS = [
    # state, rows of a window, requests at once, guesses put right, second drafter
    ("native", 8, 8, 0.8, False),
    ("native", 5, 1, 1.0, True),
    ("native", 2, 3, 0.0, True),
    ("native", 3, 5, None, True),
    ("replay", 8, 4, 0.9, False),
    ("replay", 3, 8, 0.6, True),
    ("replay", 8, 2, 1.0, False),
    ("snapshot", 6, 8, 0.7, False),
]


@pytest.fixture(scope="module")
def wide(tiny_model_folder):
    """Answers in fp64 without guesses: greedy for the first half, drawn for the second."""
    settings = RuntimeSettings(max_requests=8, max_length=200, dtype="fp64")
    runtime, asked = load_runtime(tiny_model_folder, settings), some_prompts(12)
    greedy, drawn = GREEDY, DRAWN
    return asked, answer(runtime, asked[:6], greedy)[0] + answer(runtime, asked[6:], drawn)[0]


GREEDY = SamplingParams(max_tokens=110, ignore_eos=True)
DRAWN = SamplingParams(max_tokens=110, ignore_eos=True, temperature=0.7, top_p=0.9, seed=7)


@pytest.mark.slow
@pytest.mark.parametrize(("state", "window", "count", "right", "second"), ARMS)
def test_ten_thousand_tokens_in_fp64(tmp_path, tiny_model_folder, wide, state, window, count, right, second):
    """1320 tokens an arm: windows, batches, rings that wrap, drafts that are right, wrong, and all wrong."""
    asked, expected = wide
    make_drafter(tmp_path, tiny_model_folder, second=second, **(SLIDING if count == 8 else {}))
    settings = RuntimeSettings(
        max_requests=count,
        max_length=200,
        page_size=8,
        dtype="fp64",
        state=state,
        speculation="drafter",
        drafter=tmp_path,
        window=window,
    )
    runtime = load_runtime(tiny_model_folder, settings)
    scheduler = runtime.engine.scheduler
    scheduler.drafts = Corrected(scheduler.drafts, dict(zip(asked, expected, strict=True)), right)
    found, results = answer(runtime, asked[:6], GREEDY)
    drawn, more = answer(runtime, asked[6:], DRAWN)
    assert found + drawn == expected
    counts = [result.drafts for result in (results | more).values()]
    accepted, guessed = sum(c.num_accepted for c in counts), sum(c.num_guessed for c in counts)
    if right == 0.0:
        assert accepted == 0
    if right == 1.0:
        # All but what reaches beyond the end of an answer.
        assert accepted > 0.9 * guessed
    pool = runtime.runner.caches.state
    pool.check_integrity(range(1, pool.num_slots))
    if state == "replay":
        assert pool.flush_count > 20


@pytest.mark.parametrize("state", ["native", "replay", "snapshot"])
def test_states_after_every_commit(tmp_path, tiny_model_folder, state):
    settings = {"max_requests": 1, "max_length": 128, "state": state, "dtype": "fp64"}
    (prompt,) = some_prompts(1)
    sampling = SamplingParams(max_tokens=40, ignore_eos=True)
    make_drafter(tmp_path, tiny_model_folder)

    def walk(runtime):
        engine, pool, states = runtime.engine, runtime.runner.caches.state, {}
        engine.submit(prompt, sampling)
        while engine.has_work:
            engine.step()
            for request in engine.scheduler.running:
                folded = {"folded": True} if state == "replay" else {}
                kept = pool.snapshot(request.slot, **folded).tensors
                states[request.num_computed] = {name: kept[name].clone() for name in ("state", "tail")}
        return states

    plain = load_runtime(tiny_model_folder, RuntimeSettings(**settings))
    states = walk(plain)
    expected, _ = answer(plain, [prompt], sampling)
    guessing = load_runtime(
        tiny_model_folder, RuntimeSettings(**settings, speculation="drafter", drafter=tmp_path, window=6)
    )
    drafts = guessing.engine.scheduler.drafts
    guessing.engine.scheduler.drafts = Corrected(drafts, {prompt: expected[0]}, 0.7)
    found = walk(guessing)
    assert 5 < len(found) < len(states)
    for place, tensors in found.items():
        for name, tensor in tensors.items():
            torch.testing.assert_close(tensor, states[place][name], rtol=1e-9, atol=1e-11)


def test_a_drafter_with_few_pages_and_cancellations(tmp_path, tiny_model_folder):
    """Preempted and cancelled inside a block: nobody loses a token, no page is lost."""
    make_drafter(tmp_path, tiny_model_folder, second=True)
    plain = load_runtime(tiny_model_folder, RuntimeSettings(max_requests=6, max_length=128))
    asked = some_prompts(60, seed=1)
    sampling = SamplingParams(max_tokens=60, ignore_eos=True)
    expected, _ = answer(plain, asked, sampling)
    runtime = load_runtime(
        tiny_model_folder,
        RuntimeSettings(
            max_requests=6,
            max_length=128,
            page_size=8,
            num_pages=44,
            queue_limit=8,
            prefix_cache_bytes=1 << 20,
            speculation="drafter",
            drafter=tmp_path,
            window=8,
        ),
    )
    engine, draw = runtime.engine, np.random.default_rng(5)
    known = dict(zip(asked, expected, strict=True))
    engine.scheduler.drafts = Corrected(engine.scheduler.drafts, known, 0.8)
    todo, live, preemptions, checked = list(asked), {}, 0, 0
    while todo or engine.has_work:
        while todo:
            try:
                live[engine.submit(todo[-1], sampling)] = todo[-1]
            except QueueFullError:
                break
            todo.pop()
        if live and draw.random() < 0.03:
            engine.cancel(list(live)[int(draw.integers(len(live)))])
        for output in engine.step():
            if output.result is not None:
                wanted = known[live.pop(output.id)]
                is_whole = output.result.finish_reason is not FinishReason.CANCELLED
                assert list(output.result.ids) == wanted[: None if is_whole else len(output.result.ids)]
                preemptions += output.result.num_preemptions
                checked += is_whole
        engine.check_integrity()
    assert checked > 40
    assert preemptions > 5
    runtime.runner.caches.state.check_integrity(range(1, 7))
