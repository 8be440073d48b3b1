"""Bits of the compiled pools: what a request gets depends on its own rows and acceptance only."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from ocrquant.engine.device import Device
from ocrquant.engine.state import NativePool, ReplayPool, SnapshotPool, StatePool
from ocrquant.kernels import program
from ocrquant.kernels.extension import missing_reason
from ocrquant.kernels.selection import count_launches
from ocrquant.models.spec import StateSpec
from tests.engine.state.making import SPEC, Part, i32, inputs_of, make_layers, metadata, step

pytestmark = pytest.mark.skipif(bool(missing_reason()), reason="needs the extension")
BF16 = torch.bfloat16


def same_bits(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x.view(torch.int16), y.view(torch.int16)) for x, y in zip(a, b, strict=True))


PLAIN = {"native": NativePool, "snapshot": SnapshotPool}


def make(kind: str, window: int = 4, slots: int = 6) -> StatePool:
    common = {"num_slots": slots, "max_rows": 128, "window": window}
    if kind in PLAIN:
        return PLAIN[kind](SPEC, **common)
    history = 1 if window == 1 else 3 * window
    return ReplayPool(SPEC, history=history, record_dtype=BF16 if kind == "replay, bf16" else None, **common)


KINDS = [*PLAIN, "replay", "replay, bf16"]


def serve(
    pool: StatePool, slots: dict[int, int], seed: int = 0
) -> tuple[dict[int, list[Tensor]], dict[int, Tensor]]:
    """Serves requests, each with its own fate: chunks, windows and single rows are drawn per request."""
    layers = make_layers(4, 64, BF16)
    fates = {request: random.Random(100 * seed + request) for request in slots}
    done, outs = dict.fromkeys(slots, 0), {request: [] for request in slots}
    for number in range(14):
        lists: dict[str, list[Part]] = {"drafted": [], "decode": [], "prefill": []}
        for request, slot in slots.items():
            if number < 2:
                lists["prefill"].append(Part(request, slot, done[request], fates[request].randint(1, 7)))
            elif pool.window > 1 and fates[request].random() < 0.7:
                lists["drafted"].append(Part(request, slot, done[request], pool.window))
            else:
                lists["decode"].append(Part(request, slot, done[request], 1))
        parts = [part for some in lists.values() for part in some]
        for part, found in zip(parts, step(pool, layers, **lists), strict=True):
            outs[part.request] += found
        accepted = [fates[p.request].randint(0, p.count) for p in lists["drafted"]]
        if accepted:
            pool.commit([p.slot for p in lists["drafted"]], accepted)
        for place, part in enumerate(parts):
            done[part.request] += accepted[place] if place < len(accepted) else part.count
    return outs, {request: pool.snapshot(slot).tensors["state"] for request, slot in slots.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_alone_and_among_others(kind: str):
    together, states = serve(make(kind), {0: 4, 1: 1, 2: 5, 3: 2})
    for request in range(4):
        alone, state = serve(make(kind), {request: 0})
        assert same_bits(alone[request], together[request])
        assert torch.equal(state[request], states[request])


def test_native_windows_give_the_bits_of_single_rows():
    layers = make_layers(1, 40, BF16)
    drafted, single = make("native"), make("native")
    for pool in (drafted, single):
        step(pool, layers, prefill=[Part(0, 1, 0, 5)])
    done = 5
    for accepted in (4, 0, 1, 3, 2, 4):
        (found,) = step(drafted, layers, drafted=[Part(0, 1, done, 4)])
        drafted.commit([1], [accepted])
        for token in range(accepted):
            (wanted,) = step(single, layers, decode=[Part(0, 1, done + token, 1)])
            assert same_bits([x[token : token + 1] for x in found], wanted)
        done += accepted
    assert torch.equal(drafted.state[:, 1], single.state[:, 1])
    assert torch.equal(drafted.tail[:, 1], single.tail[:, 1])


def test_a_history_of_one_is_the_native_pool():
    (native, native_states), (replay, states) = (
        serve(make(k, 1), {0: 4, 2: 1}) for k in ("native", "replay")
    )
    for request in (0, 2):
        assert same_bits(native[request], replay[request])
        assert torch.equal(native_states[request], states[request])


@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_snapshot_goes_on_with_the_same_bits(kind: str):
    layers, pool = make_layers(1, 60, BF16), make(kind)
    step(pool, layers, prefill=[Part(0, 1, 0, 5)])
    step(pool, layers, drafted=[Part(0, 1, 5, 4)])
    pool.commit([1], [3])
    kept = pool.snapshot(1)
    assert 0 < kept.nbytes <= pool.bytes_per_slot
    results = []
    for slot in (1, 3, 1):
        if slot == 3:
            for tensor in pool.slot_tensors(3).values():
                tensor.fill_(float("nan") if tensor.is_floating_point() else 2**31 - 1)
        pool.restore(slot, kept)
        pool.check_integrity([slot])
        found = []
        for begin in (8, 10, 12, 14, 16):
            found += step(pool, layers, drafted=[Part(0, slot, begin, 4)])[0]
            pool.commit([slot], [2])
        results.append(found)
    assert same_bits(results[0], results[1])
    assert same_bits(results[0], results[2])


@pytest.mark.parametrize("kind", KINDS)
def test_a_captured_step_replays(kind: str):
    """One program for the step and the commit; inputs, slots and accepted counts change between its runs."""
    layers = make_layers(3, 60, BF16)
    eager, captured = make(kind), make(kind)
    slots = [1, 3, 2]
    for pool in (eager, captured):
        step(pool, layers, prefill=[Part(r, s, 0, 5) for r, s in enumerate(slots)])
    parts = [Part(r, s, 5, 4) for r, s in enumerate(slots)]
    meta = metadata(parts, [0, 4, 8, 12], 3, 0)
    inputs = [inputs_of(SPEC, layer, parts) for layer in layers]
    outs, accepted = torch.empty(2, 12, SPEC.value_heads * SPEC.value_dim, dtype=BF16), i32(0, 0, 0)
    captured.begin_window(meta.slots, 4)
    with program.capture(inputs, meta, outs, accepted) as recorded:
        for number in range(2):
            captured.advance(number, inputs[number], meta, outs[number])
        captured.commit(meta.slots, accepted)
    done, chance = [5, 5, 5], random.Random(0)
    for _ in range(9):
        parts = [Part(r, s, done[r], 4) for r, s in enumerate(slots)]
        wanted = step(eager, layers, drafted=parts)
        counts = [chance.randint(0, 4) for _ in parts]
        eager.commit(slots, counts)
        for layer, given in zip(layers, inputs, strict=True):
            new = inputs_of(SPEC, layer, parts)
            for name in ("mixed", "a", "b"):
                getattr(given, name).copy_(getattr(new, name))
        accepted.copy_(i32(*counts))
        recorded.run()
        for request in range(3):
            assert same_bits([out[4 * request : 4 * request + 4] for out in outs], wanted[request])
        done = [a + b for a, b in zip(done, counts, strict=True)]
    assert torch.equal(eager.state, captured.state)
    assert torch.equal(eager.tail, captured.tail)
    if isinstance(captured, ReplayPool):
        assert captured.flush_count > 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_commit_costs_the_same_however_many_layers(kind: str):
    launches = []
    for num_layers in (1, 5):
        spec = StateSpec(
            num_layers=num_layers, key_heads=2, value_heads=4, key_dim=16, value_dim=16, conv_taps=4
        )
        pool_class = PLAIN.get(kind, ReplayPool)
        pool = pool_class(spec, num_slots=3, max_rows=32, window=4)
        layers = make_layers(1, 20, BF16, spec)
        step(pool, layers, prefill=[Part(0, 1, 0, 5)])
        step(pool, layers, drafted=[Part(0, 1, 5, 4)])
        with count_launches() as counted:
            pool.commit([1], [2])
        launches.append(sum(counted.values()))
    assert launches == [2, 2]


def test_rejected_records_and_poison_in_free_slots_change_nothing():
    layers = make_layers(2, 60, BF16)
    results = []
    for poison in (False, True):
        pool = make("replay")
        step(pool, layers, prefill=[Part(0, 1, 0, 5)])
        if poison:
            for slot in (0, 2, 3, 4, 5):
                for tensor in pool.slot_tensors(slot).values():
                    tensor.fill_(float("nan") if tensor.is_floating_point() else -(2**31))
        found = []
        for begin in range(5, 40, 2):
            draft = Part(0, 1, begin, 4)
            found += [x[:2] for x in step(pool, layers, drafted=[draft])[0]]
            pool.commit([1, *([-1] if poison else [])][:1], [2])
            if poison:
                write_pos = int(pool.cursors.write_pos[1])
                dead = (int(pool.cursors.base[1]) + torch.arange(write_pos, pool.size)) % pool.size
                for name in ("u", "k", "log_gate"):
                    getattr(pool, name)[:, 1][:, :, dead] = float("nan")
        results.append(found)
    assert same_bits(*results)


@pytest.mark.parametrize("kind", KINDS)
def test_commits_that_were_recorded_follow_the_numbers(kind: str):
    """One program for each number of slots: other slots and counts are read when it runs."""
    layers, device = make_layers(3, 40, BF16), Device(torch.device("cpu"), BF16)
    plain, recorded, captures = make(kind), make(kind), []

    def capture(work):
        captures.append(work)
        return device.capture(work)

    for pool, how in ((plain, None), (recorded, capture)):
        done = {slot: 0 for slot in (1, 2, 4)}
        for slots, accepted in (((1, 2), (4, 1)), ((4, 1), (2, 3)), ((2,), (1,)), ((4, 2), (0, 4))):
            parts = [Part(slot % 3, slot, done[slot], 4) for slot in slots]
            step(pool, layers, drafted=parts)
            pool.commit(list(slots), list(accepted), how)
            for slot, count in zip(slots, accepted, strict=True):
                done[slot] += count
    assert len(captures) == 2
    for name in ("state", "tail"):
        assert torch.equal(getattr(plain, name), getattr(recorded, name))
