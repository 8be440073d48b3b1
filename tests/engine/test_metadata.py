"""Arrays of a step by hand, fixed addresses, one copy, three objects, and steps that only move on."""

import numpy as np
import pytest
import torch

from ocrquant.engine.config import EngineConfig
from ocrquant.engine.engine import Engine
from ocrquant.engine.metadata import MAX_KEPT_VIEWS, StepBuilder
from ocrquant.engine.page_table import PageTable
from ocrquant.engine.plan import Chunk, Plan, Tables, Window
from ocrquant.engine.pools import Holding
from ocrquant.engine.prompt import Prompt, PromptImage, text_prompt
from ocrquant.engine.request import Request
from ocrquant.engine.sampling import SamplingParams
from ocrquant.models.step import AttentionMetadata, StateMetadata
from tests.engine.fakes import FakeRunner
from tests.engine.test_drafting import Oracle
from tests.engine.test_engine import requests as random_requests

CPU = torch.device("cpu")
SETTINGS = {"max_positions": 32, "num_pages": 50, "page_size": 4, "max_requests": 6, "max_step_tokens": 24}


def make_request(number, prompt, slot, *, output=(), computed=0, **sampling):
    request = Request(str(number), number, prompt, SamplingParams(**sampling), 10, output_ids=list(output))
    request.holding, request.num_computed = Holding(slot, 8), computed
    return request


def make_tables(config):
    """Page p of slot s is 10 * s + p, so that every number tells where it comes from."""
    tables = []
    for first in (0, 100):
        table = PageTable(config.state_rows, config.pages_per_request, config.page_size)
        for slot in range(config.state_rows):
            table.enter(slot, 0, range(first + 10 * slot, first + 10 * slot + config.pages_per_request))
        tables.append(table)
    return Tables(tables[0], tables[1] if config.drafter_pages else None)


def image_prompt():
    """Two tokens, an image of 2 x 2, one token, an image of 1 x 2, two tokens."""
    tokens = np.array([5, 6, 9, 9, 9, 9, 7, 9, 9, 8, 4], np.int32)
    positions = np.array([
        [0, 1, 2, 2, 2, 2, 4, 5, 5, 7, 8],
        [0, 1, 2, 2, 3, 3, 4, 5, 5, 7, 8],
        [0, 1, 2, 3, 2, 3, 4, 5, 6, 7, 8],
    ], np.int32)  # fmt: skip
    images = (PromptImage(b"a", 2, 4, (1, 4, 4)), PromptImage(b"b", 7, 2, (1, 2, 4)))
    return Prompt(tokens, positions, -2, images)


def mixed_plan(config):
    """A window of three, two single rows, a whole prompt, one that resumes, the middle of a third."""
    window = make_request(0, text_prompt([1] * 6, 3), 1, output=[11, 12], computed=7, temperature=0.5, seed=1)
    first = make_request(1, text_prompt([1] * 8, 3), 2, output=[21], computed=8, top_p=0.25)
    second = make_request(2, image_prompt(), 3, output=[31, 32, 33], computed=13, seed=(1 << 63) + 5)
    whole = make_request(3, text_prompt([41, 42], 3), 4, temperature=2.0)
    resumed = make_request(4, text_prompt([51, 52], 3), 5, output=[53, 54], computed=1)
    middle = make_request(5, image_prompt(), 6, computed=3)
    return Plan(
        drafted=(Window(window, (13, 14), 2),),
        decode=(first, second),
        prefill=(Chunk(whole, 0, 2, True), Chunk(resumed, 1, 3, True), Chunk(middle, 3, 6, False)),
        tables=make_tables(config),
    )


def build_mixed(**settings):
    config = EngineConfig(**SETTINGS | {"max_window": 3} | settings)
    builder = StepBuilder(config, CPU)
    for array in builder.arena.host.values():  # nothing may leak in from what lay there before
        array[...] = 2**31 - 1 if array.dtype == np.int32 else np.nan
    plan = mixed_plan(config)
    # Slots of requests that entered earlier.
    for request in (plan.drafted[0].request, *plan.decode):
        builder._admit(Chunk(request, 0, 1, False))
    return builder, plan, builder.build(plan)


def test_rows_of_a_mixed_step():
    _, _, inputs = build_mixed()
    step = inputs.step
    assert step.tokens.tolist() == [12, 13, 14, 21, 33, 41, 42, 52, 53, 54, 9, 9, 9, 7, 9, 9]
    assert step.positions.tolist() == [
        [7, 8, 9, 8, 11, 0, 1, 1, 2, 3, 2, 2, 2, 4, 5, 5],
        [7, 8, 9, 8, 11, 0, 1, 1, 2, 3, 2, 3, 3, 4, 5, 5],
        [7, 8, 9, 8, 11, 0, 1, 1, 2, 3, 3, 2, 3, 4, 5, 6],
    ]
    assert step.image_index.tolist() == [-1] * 10 + [0, 1, 2, -1, 3, 4]
    assert step.logit_rows.tolist() == [0, 1, 2, 3, 4, 6, 9]
    classes = step.classes
    assert [c.rows for c in (classes.drafted, classes.decode, classes.prefill)] == [
        slice(0, 3),
        slice(3, 5),
        slice(5, 16),
    ]
    assert [c.requests for c in (classes.drafted, classes.decode, classes.prefill)] == [
        slice(0, 1),
        slice(1, 3),
        slice(3, 6),
    ]


@pytest.mark.parametrize("drafter_pages", [0, 50])
def test_places_of_a_mixed_step(drafter_pages):
    _, _, inputs = build_mixed(drafter_pages=drafter_pages)
    attention, state = inputs.step.attention, inputs.step.state
    assert attention.q_start.tolist() == [0, 3, 4, 5, 7, 10, 16]
    assert attention.kv_len.tolist() == [10, 9, 14, 2, 4, 9]
    assert state.slots.tolist() == [1, 2, 3, 4, 5, 6]
    assert state.fresh.tolist() == [0, 0, 0, 1, 0, 0]
    assert state.q_start is attention.q_start
    expected = [
        *(11 * 4 + 3, 12 * 4, 12 * 4 + 1),
        *(22 * 4, 33 * 4 + 1),
        *(40 * 4, 40 * 4 + 1),
        *(50 * 4 + 1, 50 * 4 + 2, 50 * 4 + 3),
        *(60 * 4 + 3, 61 * 4, 61 * 4 + 1, 61 * 4 + 2, 61 * 4 + 3, 62 * 4),
    ]
    assert attention.slot_mapping.tolist() == expected
    assert attention.page_table[:, :3].tolist() == [[10 * s, 10 * s + 1, 10 * s + 2] for s in range(1, 7)]
    if drafter_pages:
        assert inputs.drafter.slot_mapping.tolist() == [place + 400 for place in expected]
        assert (inputs.drafter.page_table == attention.page_table + 100).all()
        assert inputs.drafter.q_start is attention.q_start
    else:
        assert inputs.drafter is None


def test_sampling_of_a_mixed_step():
    _, _, inputs = build_mixed()
    sampling = inputs.sampling
    assert sampling.temperature.tolist() == [0.5, 0.5, 0.5, 0, 0, 2.0, 0]
    assert sampling.top_p.tolist() == [1, 1, 1, 0.25, 1, 1, 1]
    assert sampling.seed.tolist() == [[1, 0]] * 3 + [[0, 0], [5, -(2**31)], [0, 0], [0, 0]]
    assert sampling.position.tolist() == [8, 9, 10, 9, 14, 2, 4]


def test_nothing_of_the_plan_is_read_after_the_copy():
    builder, plan, inputs = build_mixed(drafter_pages=50)
    before = {name: tensor.clone() for name, tensor in builder.arena.device.items()}
    for array in builder.arena.host.values():
        array[...] = 1
    for table in (plan.tables.kv, plan.tables.drafter):
        table.pages[...] = table.cells[...] = 0
    for request in [*plan.decode, *(chunk.request for chunk in plan.prefill)]:
        request.output_ids.append(3)
        request.num_computed = 0
        request.prompt.tokens[...] = 0
    for name, tensor in builder.arena.device.items():
        assert torch.equal(tensor.view(torch.int32), before[name].view(torch.int32)), name
    assert inputs.step.tokens.tolist()[:5] == [12, 13, 14, 21, 33]


def leaves(inputs):
    parts = [inputs.step, inputs.step.attention, inputs.step.state, inputs.drafter, inputs.sampling]
    return {
        (number, name): value
        for number, part in enumerate(parts)
        if part is not None
        for name in part.__dataclass_fields__
        if isinstance(value := getattr(part, name), torch.Tensor)
    }


def test_addresses_are_those_of_the_largest_step_whatever_the_counts():
    builder, plan, inputs = build_mixed(drafter_pages=50)
    smaller = Plan((), plan.decode[:1], plan.prefill[2:], plan.tables)
    again = builder.build(smaller)
    first, second = leaves(inputs), leaves(again)
    assert first.keys() == second.keys()
    assert len(first) == 4 + 4 + 3 + 4 + 4
    for name, tensor in second.items():
        assert tensor.data_ptr() == first[name].data_ptr()
        assert tensor.stride(-1) == 1
    assert builder.build(plan) is inputs


@pytest.mark.parametrize("drafter_pages", [0, 50])
def test_one_copy_a_step_and_three_objects(drafter_pages):
    copied = []

    def upload(host, device):
        copied.append(host.numel())
        device.copy_(host)

    config = EngineConfig(**SETTINGS, max_window=3, drafter_pages=drafter_pages)
    builder = StepBuilder(config, CPU, upload)
    plan = mixed_plan(config)
    for steps in range(1, 4):
        inputs = builder.build(plan)
        assert len(copied) == builder.arena.num_copies == steps
    metadata = [inputs.step.attention, inputs.step.state, inputs.drafter]
    assert [type(m) for m in metadata[:2]] == [AttentionMetadata, StateMetadata]
    assert sum(m is not None for m in metadata) == (3 if drafter_pages else 2)


def test_unused_rows_of_the_last_page_table_are_not_copied():
    copied = []
    config = EngineConfig(**SETTINGS)
    builder = StepBuilder(config, CPU, lambda host, device: copied.append(host.numel()))
    plan = Plan((), (), (Chunk(make_request(0, text_prompt([1], 3), 1), 0, 1, True),), make_tables(config))
    builder.build(plan)
    assert copied[0] == len(builder.arena._host) - 5 * config.pages_per_request


def test_views_are_bounded():
    config = EngineConfig(**SETTINGS | {"max_step_tokens": 1024, "max_positions": 1024})
    builder = StepBuilder(config, CPU)
    tables = Tables(PageTable(config.state_rows, config.pages_per_request, config.page_size), None)
    request = make_request(0, text_prompt([1] * 1000, 3), 1)
    for count in range(1, 700):
        builder.build(Plan((), (), (Chunk(request, 0, count, False),), tables))
    assert len(builder._views) <= MAX_KEPT_VIEWS


def test_a_chunk_as_long_as_a_window_is_no_window():
    config = EngineConfig(**SETTINGS, max_window=3)
    plan = mixed_plan(config)
    verify = Plan(plan.drafted, (), (), plan.tables)
    chunk = Plan((), (), (Chunk(plan.prefill[1].request, 1, 3, True),), plan.tables)
    assert verify.shape.num_rows == chunk.shape.num_rows == 3
    assert verify.shape.graph_key == (1, 3, 0)
    assert chunk.shape.graph_key is None
    assert Plan((), plan.decode, (), plan.tables).shape.graph_key == (0, 0, 2)


def test_plans_with_ragged_windows_or_unsorted_chunks_are_refused():
    plan = mixed_plan(EngineConfig(**SETTINGS))
    request = plan.drafted[0].request
    with pytest.raises(AssertionError, match="one length"):
        Plan((Window(request, (1,), 1), Window(request, (), 0)), (), (), plan.tables)
    with pytest.raises(AssertionError, match="sampled chunks first"):
        Plan((), (), plan.prefill[::-1], plan.tables)


class TwiceRunner(FakeRunner):
    """Builds every step a second time from nothing and compares what the device would read."""

    def __init__(self, config):
        super().__init__(config)
        self.whole = StepBuilder(config, CPU)
        self.whole._advance = lambda plan: False
        self.num_moved_on = 0
        advance = self.builder._advance

        def counted(plan):
            moved = advance(plan)
            self.num_moved_on += moved
            return moved

        self.builder._advance = counted

    def run(self, plan):
        sampled = super().run(plan)
        held = [*plan.going_on, *(c.request for c in plan.prefill)]
        pages = max(self.config.pages_for(r.num_tokens) for r in held)
        got, wanted = leaves(self.builder._inputs(plan.shape)), leaves(self.whole.build(plan))
        assert got.keys() == wanted.keys()
        for name, tensor in wanted.items():
            both = (
                (tensor, got[name]) if name[1] != "page_table" else (tensor[:, :pages], got[name][:, :pages])
            )
            assert torch.equal(*both), name
        return sampled


class Full(Oracle):
    """As many guesses as are asked for, so that windows keep one length."""

    def _guess(self, request, most):
        return (*super()._guess(request, most), *[1] * most)[:most]


@pytest.mark.parametrize("window", [1, 4])
@pytest.mark.parametrize("settings", [{}, {"drafter_pages": 40, "prefix_cache_bytes": 3000}])
def test_steps_that_only_move_on_equal_steps_written_whole(settings, window):
    base = {"max_positions": 96, "num_pages": 26, "page_size": 4, "max_requests": 6, "max_step_tokens": 24}
    config = EngineConfig(**base | settings | {"max_window": window})
    runner = TwiceRunner(config)
    drafts = Full(0.7, silent=0.0, drafter="drafter_pages" in settings) if window > 1 else None
    engine = Engine(config, runner, (0,), drafts=drafts)
    for prompt, sampling in random_requests(40, seed=5, ignore_eos=True):
        engine.submit(prompt, sampling)
    engine.run_until_done()
    assert engine.scheduler.num_preemptions > 3
    assert runner.num_moved_on > (50 if window == 1 else 8)


def test_a_plan_built_twice_is_the_same_twice():
    config = EngineConfig(**SETTINGS)
    builder = StepBuilder(config, CPU)
    plan = mixed_plan(config)
    single = Plan((), plan.decode, (), plan.tables)
    first = {name: tensor.clone() for name, tensor in leaves(builder.build(single)).items()}
    for name, tensor in leaves(builder.build(single)).items():
        assert torch.equal(tensor, first[name])
