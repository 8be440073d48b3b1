"""A replayed pass against one launched call by call, in bits, and what may change between replays."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from ocrquant.kernels.selection import count_launches
from ocrquant.models.vision import recorded
from tests.kernels.producing import ISAS, instruction_set, needs_native
from tests.models.vision.conftest import FAMILIES, make_pair

pytestmark = needs_native

BATCHES = [
    [(1, 4, 6), (1, 8, 10), (2, 2, 4), (1, 8, 10)],
    [(1, 2, 2)],
    [(1, 16, 32)],  # as many patches as are recorded
    [(1, 2, 4), (1, 6, 2), (1, 4, 4)],
]


@pytest.fixture(params=FAMILIES)
def pair(request):
    return make_pair(request.param, torch.bfloat16)


def eager(pair, pixels, grids):
    tower = pair.tower
    return tower.run(pixels, tower.tables.batch(grids), tower.scratch(pixels, len(pixels)))


def test_replays_have_the_bits_of_the_calls(pair):
    results = []
    for seed, grids in enumerate(BATCHES):
        pixels = pair.pixels(grids, seed)
        results.append((pair.tower.encode(pixels, grids), eager(pair, pixels, grids)))
    for found, expected in results:  # all at the end: no result lies in memory that the next pass writes
        assert torch.equal(found, expected)


def test_the_second_batch_launches_nothing_from_python(pair):
    counts = []
    for grids in BATCHES:
        with count_launches() as launches:
            pair.tower.encode(pair.pixels(grids), grids)
        counts.append(sum(launches.values()))
    assert counts[0] > 20
    assert counts[1:] == [0, 0, 0]


def test_more_patches_than_are_recorded_go_call_by_call(pair, monkeypatch):
    monkeypatch.setattr(recorded, "MAX_PATCHES", 16)
    grids = [(1, 4, 6)]
    pixels = pair.pixels(grids)
    assert torch.equal(pair.tower.encode(pixels, grids), eager(pair, pixels, grids))
    assert pair.tower._recorded._recording is None


def test_another_instruction_set_is_recorded_anew(pair):
    grids = BATCHES[0]
    pixels = pair.pixels(grids)
    pair.tower.encode(pixels, grids)
    for isa in ISAS:
        with instruction_set(isa):
            assert torch.equal(pair.tower.encode(pixels, grids), eager(pair, pixels, grids))
            assert pair.tower._recorded._recording.isa == isa


def test_reference_ops_run_where_they_are_asked_for(pair, monkeypatch):
    grids = BATCHES[1]
    pair.tower.encode(pair.pixels(grids), grids)
    monkeypatch.setenv("OCRQUANT_KERNELS", "reference")
    with count_launches() as launches:
        pair.tower.encode(pair.pixels(grids), grids)
    assert launches["packed_attention"] > 0


def test_a_recording_made_in_inference_mode_serves_outside_it(pair):
    grids = BATCHES[0]
    pixels = pair.pixels(grids)
    with torch.inference_mode():
        first = pair.tower.encode(pixels, grids)
    assert torch.equal(pair.tower.encode(pixels, grids), first)


def test_threads_take_turns(pair):
    passes = [(pair.pixels(grids, seed), grids) for seed, grids in enumerate(BATCHES)]
    expected = [eager(pair, *one) for one in passes]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda one: pair.tower.encode(*one), passes * 8))
    for index, tokens in enumerate(found):
        assert torch.equal(tokens, expected[index % len(passes)])
