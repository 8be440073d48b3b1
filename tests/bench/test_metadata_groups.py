"""Groups of layers as published, and that our metadata does not know how many layers there are."""

import pytest
import torch

from ocrquant.bench.metadata_groups import FOUR_LAYOUTS, GroupedBuilder, group_size, host_times, num_groups
from ocrquant.engine.config import EngineConfig
from ocrquant.engine.metadata import StepBuilder
from ocrquant.engine.plan import Plan, Tables
from ocrquant.engine.pools import Pools
from ocrquant.engine.prompt import text_prompt
from ocrquant.engine.request import Request
from ocrquant.engine.sampling import SamplingParams


def test_the_published_case_has_38_groups():
    assert group_size(FOUR_LAYOUTS) == 1
    assert num_groups(FOUR_LAYOUTS, group_size(FOUR_LAYOUTS)) == 38
    assert [num_groups(FOUR_LAYOUTS, size) for size in (2, 4, 5, 8, 24)] == [20, 11, 9, 6, 4]
    assert group_size((8, 9)) == 9


def decode_plan(config):
    pools = Pools(config)
    requests = []
    for number, length in enumerate((9, 12, 30)):
        request = Request(str(number), number, text_prompt([1] * length, 3), SamplingParams(), 9)
        request.holding, request.num_computed = pools.take(40), length
        request.extend((7,), (0.0,))
        requests.append(request)
    return Plan((), tuple(requests), (), Tables(pools.kv.table, pools.drafter.table))


# Layers by kind: recurrent, full, sliding draft, full draft.
@pytest.mark.parametrize(("layers", "groups"), [((2, 1, 0, 1), 4), ((30, 8, 1, 1), 40), (FOUR_LAYOUTS, 38)])
def test_ours_are_three_objects_and_one_copy_however_many_layers(layers, groups):
    layers = tuple(count for count in layers if count)
    config = EngineConfig(max_positions=64, num_pages=40, drafter_pages=40, max_requests=4)
    plan = decode_plan(config)
    copies = []

    def upload(host, device):
        copies.append(host)
        device.copy_(host)

    builder = StepBuilder(config, torch.device("cpu"), upload)
    inputs = builder.build(plan)
    kinds = [inputs.step.state, inputs.step.attention, inputs.drafter, inputs.drafter]
    # What each layer is given: a layer's kind chooses among three objects, its number never matters.
    given = [kinds[kind] for kind, count in enumerate(layers) for _ in range(count)]
    assert len(given) == sum(layers)
    assert len({id(metadata) for metadata in given}) == 3
    assert len(copies) == 1

    grouped = GroupedBuilder(config, layers)
    made = grouped.build(plan)
    assert len(made) == grouped.num_objects == groups
    assert grouped.num_copies == 4 + 2 * groups


def test_groups_hold_the_same_numbers():
    config = EngineConfig(max_positions=64, num_pages=40, drafter_pages=40, max_requests=4)
    plan = decode_plan(config)
    step = StepBuilder(config, torch.device("cpu")).build(plan).step
    for metadata in GroupedBuilder(config, FOUR_LAYOUTS).build(plan):
        ours = step.attention if hasattr(metadata, "page_table") else step.state
        for name in set(metadata.__dataclass_fields__) & set(ours.__dataclass_fields__):
            assert torch.equal(getattr(metadata, name), getattr(ours, name)), name


def test_host_times_are_measured():
    times = host_times(4, repeats=3)
    assert times.num_requests == 4
    assert times.ours_us.repeats == 3
    assert times.times.median > 2  # measured 15 and more
