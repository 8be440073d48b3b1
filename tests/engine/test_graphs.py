"""Steps that are filled up to batch classes: what is captured; filling changes no token and no memory."""

import warnings

import numpy as np
import pytest
import torch

from ocrquant.adapters import model_folder
from ocrquant.engine import loading
from ocrquant.engine.config import EngineConfig
from ocrquant.engine.cuda_device import CudaDevice, no_waiting, noted_waits
from ocrquant.engine.device import Device
from ocrquant.engine.drafting import num_accepted
from ocrquant.engine.graphs import BATCH_SIZES, BatchClasses, count_accepted, padding_of
from ocrquant.engine.loading import RuntimeSettings, load_runtime
from ocrquant.engine.metadata import StepBuilder
from ocrquant.engine.plan import PlanShape
from ocrquant.engine.sampling import SamplingParams
from tests.engine.reading import prompts
from tests.engine.test_runner import Operations

PICO = model_folder("pico")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def shape_of(drafted=0, window=0, decode=0, prefill=0):
    rows = drafted * window + decode
    return PlanShape(drafted, window, decode, 3 * prefill, prefill, rows + prefill, images=False)


class FilledDevice(Device):
    """A CPU that fills steps up as a GPU does and reads a copy of them; its captures are programs."""

    batch_sizes = BATCH_SIZES

    def __init__(self, *args):
        super().__init__(*args)
        self.can_capture_prompts = self.reads_host_memory = False


class CountingDevice(FilledDevice):
    """Its steps keep accepted rows by themselves, as on a GPU; what counts them is no native op to record."""

    commits_in_step = True

    def __init__(self, *args):
        super().__init__(*args)
        self.can_capture = False


@pytest.fixture
def filled(monkeypatch):
    monkeypatch.setattr(loading, "open_device", FilledDevice)


def test_classes_go_up_to_what_the_engine_has_room_for():
    assert BatchClasses(32, 1).sizes == BATCH_SIZES == (1, 2, 4, 8, 12, 16, 24, 32)
    assert BatchClasses(9, 1).sizes == (1, 2, 4, 8, 9)
    assert BatchClasses(100, 1).sizes == BATCH_SIZES
    assert BatchClasses(8, 1, ()).sizes == ()


def test_a_step_is_filled_up_to_the_next_class_of_its_kind():
    classes = BatchClasses(32, 4)
    assert classes.pad(shape_of(decode=5)) == shape_of(decode=8)
    assert classes.pad(shape_of(decode=8)) == shape_of(decode=8)
    assert classes.pad(shape_of(drafted=9, window=4)) == shape_of(drafted=12, window=4)
    # Beyond the largest class, of two kinds, or with parts of prompts: as it is.
    for own in (
        shape_of(decode=33),
        shape_of(drafted=1, window=4, decode=2),
        shape_of(decode=5, prefill=1),
        shape_of(prefill=1),
    ):
        assert classes.pad(own) == own
    assert BatchClasses(32, 4, ()).pad(shape_of(decode=5)) == shape_of(decode=5)


def test_keys_are_of_kinds_and_never_of_lengths():
    keys = [shape.graph_key for shape in BatchClasses(4, 3).shapes()]
    assert keys == [(4, 3, 0), (0, 0, 4), (2, 3, 0), (0, 0, 2), (1, 3, 0), (0, 0, 1)]
    # A part of a prompt of three rows, as long as a window, has no key.
    assert shape_of(prefill=1).graph_key is None


def test_rows_behind_a_step_belong_to_nobody():
    config = EngineConfig(max_positions=64, num_pages=8, max_requests=4, max_window=3, drafter_pages=8)
    builder = StepBuilder(config, torch.device("cpu"))
    for array in builder.arena.host.values():
        array[...] = 77
    padded = shape_of(drafted=4, window=3)
    inputs = builder.build_padding(padded)
    assert padding_of(padded) == shape_of(window=3)
    step, sampling = inputs.step, inputs.sampling
    assert step.state.q_start.tolist() == [0, 3, 6, 9, 12]
    assert step.state.slots.tolist() == [-1] * 4
    assert step.attention.kv_len.tolist() == step.state.fresh.tolist() == [0] * 4
    assert step.logit_rows.tolist() == list(range(12))
    for mapping in (step.attention.slot_mapping, inputs.drafter.slot_mapping):
        assert mapping.tolist() == [-1] * 12
    for zero in (step.tokens, step.positions, sampling.temperature, sampling.seed, step.attention.page_table):
        assert not zero.any()
    assert (sampling.top_p == 1).all()


class Known:
    """Guesses the answers that were read before, with a wrong token after every fifth."""

    alone = ()

    def __init__(self, answers):
        self.answers = answers

    def propose(self, requests, most, tables):
        return [self.guess(list(request.output_ids), most) for request in requests]

    def guess(self, known, most):
        for answer in self.answers:
            if list(answer[: len(known)]) == known:
                ahead = answer[len(known) : len(known) + most]
                return tuple(5 if (len(known) + i) % 5 == 0 else token for i, token in enumerate(ahead))
        return (5,) * most


def run(settings, count=5, tokens=24, drafts=None):
    runtime = load_runtime(PICO, settings)
    runtime.engine.scheduler.drafts = drafts
    for number, prompt in enumerate(prompts(runtime, "line", count)):
        params = SamplingParams(max_tokens=tokens + number, ignore_eos=True)
        runtime.engine.submit(prompt, params)
    results = runtime.engine.run_until_done()
    return runtime, {name: result.ids for name, result in results.items()}


@pytest.mark.parametrize("state", ["native", "replay"])
def test_filling_changes_no_token(monkeypatch, state):
    sizes = {"max_requests": 6, "max_length": 256, "state": state}
    _, expected = run(RuntimeSettings(**sizes))
    monkeypatch.setattr(loading, "open_device", FilledDevice)
    answers = list(expected.values())
    plain, found = run(RuntimeSettings(**sizes))
    assert list(found.values()) == answers
    assert plain.runner.num_replays >= 24
    drafted, found = run(RuntimeSettings(**sizes, speculation="ngram", window=4), drafts=Known(answers))
    assert list(found.values()) == answers
    assert 5 < drafted.runner.num_replays < plain.runner.num_replays


@pytest.mark.parametrize("state", ["native", "replay"])
def test_a_step_that_keeps_what_it_accepts_needs_no_word_from_the_host(monkeypatch, state):
    sizes = {"max_requests": 4, "max_length": 256, "state": state}
    _, expected = run(RuntimeSettings(**sizes), count=3, tokens=16)
    answers = list(expected.values())
    monkeypatch.setattr(loading, "open_device", CountingDevice)
    drafts = Known(answers)
    runtime, found = run(RuntimeSettings(**sizes, speculation="ngram", window=4), 3, 16, drafts)
    assert list(found.values()) == answers
    assert runtime.engine.statistics.drafts.num_accepted > 0
    # Nothing of the host went to the states: their staging buffer is as it was made.
    assert not runtime.runner._state._staged.any()


def test_accepted_rows_are_counted_as_the_host_counts_them():
    torch.manual_seed(0)
    tokens, chosen = (torch.randint(0, 2, (40,), dtype=torch.int32) for _ in range(2))
    found = count_accepted(tokens, chosen[:36], 9)
    wanted = [
        1 + num_accepted(tokens[i : i + 4].tolist()[1:], chosen[i : i + 4].tolist()) for i in range(0, 36, 4)
    ]
    assert found.tolist() == wanted
    assert found.dtype == torch.int32
    assert len(set(wanted)) > 2


def test_every_class_is_captured_before_the_first_request_and_none_after(filled):
    settings = RuntimeSettings(max_requests=6, max_length=256, speculation="ngram", window=4)
    runtime = load_runtime(PICO, settings)
    runner, runtime.engine.scheduler.drafts = runtime.runner, Known(())
    sizes = (1, 2, 4, 6)
    assert set(runner._graphs) == {(b, 4, 0) for b in sizes} | {(0, 0, b) for b in sizes}
    captured = runner.num_captures
    for prompt in prompts(runtime, "line", 5):
        runtime.engine.submit(prompt, SamplingParams(max_tokens=12, ignore_eos=True))
    seen = set()
    while runtime.engine.has_work:
        runtime.engine.step()
        seen.add(runtime.engine.last_step.shape)
    assert {s.graph_key for s in seen if not s.prefill and not s.decode} >= {(5, 4, 0)}
    assert runner.num_captures == captured


def test_a_shorter_window_is_captured_when_it_comes_first_and_with_nobodys_rows(filled, monkeypatch):
    settings = RuntimeSettings(max_requests=2, max_length=256, speculation="ngram", window=5)
    runtime = load_runtime(PICO, settings)
    runner, drafts = runtime.runner, Known(())
    drafts.guess = lambda known, most: (5, 5)
    runtime.engine.scheduler.drafts = drafts
    made, capture = [], runner._device.capture
    slots = runner._builder.arena.device["slots"]
    monkeypatch.setattr(
        runner._device, "capture", lambda work: (made.append(slots[:2].tolist()), capture(work))[1]
    )
    for prompt in prompts(runtime, "line", 2):
        runtime.engine.submit(prompt, SamplingParams(max_tokens=12, ignore_eos=True))
    while runtime.engine.has_work:
        runtime.engine.step()
    assert {(1, 3, 0), (2, 3, 0)} & set(runner._graphs)
    assert made
    assert all(slot == -1 for found in made for slot in found)


def test_a_filled_step_is_one_copy_and_makes_no_tensor(filled, monkeypatch):
    runtime = load_runtime(PICO, RuntimeSettings(max_requests=8, max_length=256))
    for prompt in prompts(runtime, "line", 5):
        runtime.engine.submit(prompt, SamplingParams(max_tokens=30, ignore_eos=True))
    while runtime.engine.scheduler.queue or runtime.engine.last_step.shape.prefill:
        runtime.engine.step()
    runner, arena = runtime.runner, runtime.runner._builder.arena
    copies, captures = arena.num_copies, runner.num_captures
    for _ in range(4):
        runtime.engine.step()
    assert (arena.num_copies, runner.num_captures) == (copies + 4, captures)
    plan = runtime.engine.scheduler.schedule()
    shape = runner._classes.pad(plan.shape)
    assert (plan.shape.decode, shape.decode) == (5, 8)
    inputs = runner._builder.build(plan, shape)
    with Operations() as operations:
        runner._compute(shape, inputs)
    assert operations.names == []


def test_filling_rows_touch_no_memory_of_anybody(filled):
    runtime = load_runtime(PICO, RuntimeSettings(max_requests=8, max_length=128, num_pages=64))
    runner, state = runtime.runner, runtime.runner._state
    (prompt,) = prompts(runtime, "line", 1)
    runtime.engine.submit(prompt, SamplingParams(max_tokens=4, ignore_eos=True))
    runtime.engine.step()
    (request,) = runtime.engine.scheduler.running
    mine = np.unique(runtime.engine.scheduler._tables.kv.pages[request.slot])
    others = [page for page in range(64) if page not in mine]
    for cache in (*runner.caches.k, *runner.caches.v):
        cache[others] = torch.nan
    empty = [slot for slot in range(state.num_slots) if slot != request.slot]
    state.state[:, empty] = torch.nan
    state.tail[:, empty] = torch.nan
    runner._classes.sizes = (8,)  # one request among eight rows
    expected = len(request.output_ids)
    runtime.engine.run_until_done()
    assert expected < 4
    for cache in (*runner.caches.k, *runner.caches.v):
        assert cache[others].isnan().all()
    assert state.state[:, empty].isnan().all()
    assert state.tail[:, empty].isnan().all()
    assert runner.logits[:1].isfinite().all()


@pytest.mark.parametrize("words", ["called a synchronizing CUDA operation", "another warning"])
def test_what_torch_says_of_waits_is_noted(monkeypatch, words):
    modes = [0]
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: modes[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    found = noted_waits(lambda: warnings.warn(words, stacklevel=1))
    assert found == ([words] if "synchronizing" in words else [])
    assert modes == [0, "warn", 0]


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("speculation", ["off", "ngram"])
def test_a_step_on_a_gpu_waits_for_nothing_but_its_tokens(speculation):
    settings = RuntimeSettings(
        max_requests=4, max_length=256, device="cuda:0", speculation=speculation, window=4
    )
    runtime = load_runtime(PICO, settings)
    assert isinstance(runtime.runner._device, CudaDevice)
    assert runtime.runner._device.obstacle == ""
    for prompt in prompts(runtime, "line", 3):
        runtime.engine.submit(prompt, SamplingParams(max_tokens=20, ignore_eos=True))
    while runtime.engine.scheduler.queue or runtime.engine.last_step.shape.prefill:
        runtime.engine.step()
    replays = runtime.runner.num_replays
    with no_waiting(torch.device("cuda:0")):
        for _ in range(4):
            runtime.engine.step()
    assert runtime.runner.num_replays == replays + 4


@pytest.mark.gpu
@needs_cuda
def test_graphs_give_the_tokens_of_single_launches():
    captured, by_graph = run(RuntimeSettings(max_requests=6, max_length=256, device="cuda:0"))
    assert captured.runner.num_replays > 0
    launched = load_runtime(PICO, RuntimeSettings(max_requests=6, max_length=256, device="cuda:0"))
    launched.runner._device.can_capture = False
    for number, prompt in enumerate(prompts(launched, "line", 5)):
        launched.engine.submit(prompt, SamplingParams(max_tokens=24 + number, ignore_eos=True))
    results = launched.engine.run_until_done()
    assert [result.ids for result in results.values()] == list(by_graph.values())
