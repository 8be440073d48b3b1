"""The engine on the shipped model: what a step touches, counts, and that batches change no token."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ocrquant.adapters import model_folder
from ocrquant.engine.loading import RuntimeSettings, load_runtime
from ocrquant.engine.sampling import SamplingParams
from ocrquant.kernels.program import capture
from tests.engine.reading import prompts, read

PICO = model_folder("pico")


@pytest.fixture(scope="module")
def runtime():
    return load_runtime(PICO, RuntimeSettings(max_requests=8))


@pytest.fixture(scope="module")
def alone():
    return load_runtime(PICO, RuntimeSettings(max_requests=1))


class Operations(TorchDispatchMode):
    """Names of the torch operations that make or change a tensor; views do neither."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not func.is_view:
            self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def start(runtime, kind="line", count=4):
    """Requests that are all decoding."""
    for prompt in prompts(runtime, kind, count):
        runtime.engine.submit(prompt, SamplingParams(max_tokens=40, ignore_eos=True))
    while runtime.engine.scheduler.queue or runtime.engine.last_step.shape.prefill:
        runtime.engine.step()


@pytest.fixture
def busy(runtime):
    start(runtime)
    yield runtime
    runtime.engine.run_until_done()


def test_a_decode_step_is_one_replay_and_one_read_back(busy, monkeypatch):
    runner = busy.runner
    read_backs, read_back = [], runner._read_back
    monkeypatch.setattr(runner, "_read_back", lambda count: (read_backs.append(count), read_back(count))[1])
    captures, replays = runner.num_captures, runner.num_replays
    for _ in range(5):
        busy.engine.step()
    assert read_backs == [4] * 5
    assert [a.dtype for a in read_back(4)] == [np.int32, np.float32], "sampled tokens and their gaps"
    assert runner._builder.arena.num_copies == 0, "a CPU reads what the host wrote"
    assert runner.num_replays == replays + 5
    assert runner.num_captures - captures <= 1


def test_running_a_step_makes_no_tensor_and_reads_none(busy):
    runner, plan = busy.runner, busy.engine.scheduler.schedule()
    inputs = runner._builder.build(plan)
    with Operations() as operations:
        runner._compute(plan.shape, inputs)
    assert operations.names == []
    sampled = runner.run(plan)
    busy.engine._postprocess(plan, sampled)


def test_what_was_planned_is_what_runs(busy):
    runner, plan = busy.runner, busy.engine.scheduler.schedule()
    inputs = runner._builder.build(plan)
    # The recurrent states move on with every run, so each run begins with the same ones.
    slots = [request.slot for request in plan.decode]
    kept = [runner.snapshot(slot) for slot in slots]
    runner._launch(plan.shape, inputs)
    expected = runner._tokens[: plan.shape.logit_rows].clone()
    for slot, state in zip(slots, kept, strict=True):
        runner.restore(slot, state)
    pages, cells = plan.tables.kv.pages.copy(), plan.tables.kv.cells.copy()
    plan.tables.kv.pages[...] = plan.tables.kv.cells[...] = -1
    answers = [list(request.output_ids) for request in plan.decode]
    for request in plan.decode:
        request.output_ids[:] = [0] * len(request.output_ids)
    runner._launch(plan.shape, inputs)
    assert torch.equal(runner._tokens[: plan.shape.logit_rows], expected)
    for request, answer in zip(plan.decode, answers, strict=True):
        request.output_ids[:] = answer
    plan.tables.kv.pages[...], plan.tables.kv.cells[...] = pages, cells
    for slot, state in zip(slots, kept, strict=True):
        runner.restore(slot, state)
    busy.engine._postprocess(plan, runner.run(plan))


def test_captures_are_keyed_by_class_not_by_length():
    # Parts of prompts of one row each: as long as a decode step, and never its program.
    runtime = load_runtime(PICO, RuntimeSettings(max_requests=1, max_step_tokens=1))
    asked = prompts(runtime, "line", 1)
    runtime.engine.submit(asked[0], SamplingParams(max_tokens=4, ignore_eos=True))
    runtime.engine.run_until_done()
    decode = [key for key in runtime.runner._graphs if isinstance(key, tuple)]
    parts = [key for key in runtime.runner._graphs if not isinstance(key, tuple)]
    assert decode == [(0, 0, 1)]
    assert parts
    assert all((key.decode, key.prefill, key.num_rows) == (0, 1, 1) for key in parts)


def test_a_page_of_a_known_size_is_captured_no_more(alone):
    runner, asked = alone.runner, prompts(alone, "line", 1)
    first = read(alone, asked)
    captures = runner.num_captures
    assert read(alone, asked) == first
    assert runner.num_captures == captures


def test_a_batch_reads_what_each_page_reads_alone(runtime, alone):
    asked = prompts(runtime, "line", 12) + prompts(runtime, "block", 2)
    together = read(runtime, asked, max_tokens=120)
    runtime.engine.check_integrity()
    assert together == [read(alone, [prompt], max_tokens=120)[0] for prompt in asked]


@pytest.mark.parametrize("step_tokens", [8, 13, 64])
def test_chunks_of_prompts_change_no_token(alone, step_tokens):
    chunked = load_runtime(PICO, RuntimeSettings(max_requests=4, max_step_tokens=step_tokens))
    asked = prompts(alone, "line", 6)
    assert read(chunked, asked) == [read(alone, [prompt])[0] for prompt in asked]


def test_preemption_changes_no_token(alone):
    tight = load_runtime(PICO, RuntimeSettings(max_requests=4, max_length=256, num_pages=17))
    asked = prompts(alone, "line", 8)
    found = read(tight, asked, max_tokens=120, ignore_eos=True)
    assert tight.engine.scheduler.num_preemptions > 0
    assert found == [read(alone, [prompt], max_tokens=120, ignore_eos=True)[0] for prompt in asked]


def test_a_repeated_page_comes_from_the_prefix_cache_with_the_same_text(alone):
    cached = load_runtime(PICO, RuntimeSettings(max_requests=4, prefix_cache_bytes=64 << 20))
    asked = prompts(alone, "line", 3)
    first, second = read(cached, asked), read(cached, asked)
    assert cached.engine.prefixes.num_hits >= 3
    assert first == second == [read(alone, [prompt])[0] for prompt in asked]


def test_seeds_make_samples_that_no_batch_changes(runtime, alone):
    asked = prompts(runtime, "line", 4)
    together = read(runtime, asked, temperature=1.5, seed=5)
    assert together == [read(alone, [prompt], temperature=1.5, seed=5)[0] for prompt in asked]
    assert together != read(runtime, asked, temperature=1.5, seed=6)


def test_replay_states_read_the_same_as_native_ones(alone):
    replay = load_runtime(PICO, RuntimeSettings(max_requests=4, state="replay"))
    asked = prompts(alone, "line", 6)
    same = [a == b for a, b in zip(read(replay, asked), read(alone, asked), strict=True)]
    # Records are added in another order, so a token may flip where two logits are as good as equal.
    assert np.mean(same) >= 0.8


def test_memory_is_that_of_the_checkpoint(runtime):
    assert abs(runtime.memory.weights_over_stored) < 0.05
    assert runtime.memory.bytes_per_parameter == pytest.approx(2.0, abs=0.05)


def test_a_step_has_as_many_launches_whatever_its_rows(runtime):
    launches = set()
    for count in (1, 3, 8):
        start(runtime, count=count)
        plan = runtime.engine.scheduler.schedule()
        assert plan.shape.decode == count
        inputs = runtime.runner._builder.build(plan)
        with capture() as program:
            runtime.runner._compute(plan.shape, inputs)
        launches.add(program.num_launches)
        runtime.engine._postprocess(plan, runtime.runner.run(plan))
        runtime.engine.run_until_done()
    assert len(launches) == 1
