"""Both pools in fp64 against the recurrence alone: windows, acceptance, wrapping rings, mixed rows, slots."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from ocrquant.engine.state import NativePool, ReplayPool, SnapshotPool, StatePool
from tests.engine.state.making import SPEC, Layer, Part, alone, make_layers, step

F64 = torch.float64
TIGHT = {"rtol": 1e-12, "atol": 1e-12}


def pools(window: int) -> dict[str, StatePool]:
    kind = {"num_slots": 5, "max_rows": 256, "window": window, "dtype": F64, "state_dtype": F64}
    least = 1 if window == 1 else 2 * window
    return {
        "native": NativePool(SPEC, **kind),
        "snapshot": SnapshotPool(SPEC, **kind),
        "replay, least history": ReplayPool(SPEC, history=least, **kind),
        "replay, odd history": ReplayPool(SPEC, history=2 * window + 3, **kind),
        "replay, ring that is full": ReplayPool(SPEC, history=max(4 * window, 8), **kind),
    }


KINDS = list(pools(1))


class Oracle:
    def __init__(self, layers: list[Layer], requests: int) -> None:
        self.of = [[alone(layer, request) for layer in layers] for request in range(requests)]

    def outputs(self, part: Part) -> list[Tensor]:
        return [out[part.tokens] for out, _ in self.of[part.request]]

    def check_state(self, pool: StatePool, slot: int, request: int, done: int) -> None:
        kept = pool.snapshot(slot, folded=True) if isinstance(pool, ReplayPool) else pool.snapshot(slot)
        for layer, (_, states) in enumerate(self.of[request]):
            torch.testing.assert_close(kept.tensors["state"][layer], states[done - 1], **TIGHT)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("window", [2, 3, 5])
def test_windows_with_random_acceptance(kind: str, window: int):
    tokens = 60
    pool, layers = pools(window)[kind], make_layers(3, tokens, F64)
    oracle, chance = Oracle(layers, 3), random.Random(window)
    slots, done = [2, 1, 4], [7, 1, 12]
    step(pool, layers, prefill=[Part(r, slots[r], 0, done[r]) for r in range(3)])
    steps = 0
    while max(done) + window <= tokens:
        parts = [Part(r, slots[r], done[r], window) for r in range(3)]
        for part, found in zip(parts, step(pool, layers, drafted=parts), strict=True):
            torch.testing.assert_close(found, oracle.outputs(part), **TIGHT)
        accepted = [chance.choice([0, 1, window, chance.randint(0, window)]) for _ in parts]
        pool.commit(slots, accepted)
        done = [a + b for a, b in zip(done, accepted, strict=True)]
        pool.check_integrity(slots)
        steps += 1
    for request, slot in enumerate(slots):
        oracle.check_state(pool, slot, request, done[request])
    assert steps > 10
    if isinstance(pool, ReplayPool):
        assert pool.flush_count > 3 * steps / 8


@pytest.mark.parametrize("kind", KINDS)
def test_decode_without_windows(kind: str):
    pool, layers = pools(1)[kind], make_layers(2, 40, F64)
    oracle = Oracle(layers, 2)
    step(pool, layers, prefill=[Part(0, 3, 0, 4)])
    for token in range(4, 40):
        parts = [Part(0, 3, token, 1)]
        (found,) = step(pool, layers, decode=parts)
        torch.testing.assert_close(found, oracle.outputs(parts[0]), **TIGHT)
        pool.check_integrity([3])
    oracle.check_state(pool, 3, 0, 40)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_all_classes_in_one_step(kind: str):
    """Windows, plain rows and parts of prompts at once, requests changing between them, slots handed on."""
    window, tokens = 4, 36
    pool, layers = pools(window)[kind], make_layers(6, tokens, F64)
    oracle, chance = Oracle(layers, 6), random.Random(5)
    slot_of, done = {0: 1, 1: 2, 2: 3, 3: 4}, dict.fromkeys(range(6), 0)
    for _ in range(40):
        lists: dict[str, list[Part]] = {"drafted": [], "decode": [], "prefill": []}
        for request, slot in slot_of.items():
            begin = done[request]
            if begin == 0 or chance.random() < 0.3:
                lists["prefill"].append(Part(request, slot, begin, chance.randint(1, 6)))
            elif chance.random() < 0.6:
                lists["drafted"].append(Part(request, slot, begin, window))
            else:
                lists["decode"].append(Part(request, slot, begin, 1))
        parts = [part for some in lists.values() for part in some]
        for part, found in zip(parts, step(pool, layers, **lists), strict=True):
            torch.testing.assert_close(found, oracle.outputs(part), **TIGHT)
        accepted = [chance.randint(0, window) for _ in lists["drafted"]]
        if accepted:
            pool.commit([p.slot for p in lists["drafted"]], accepted)
        for number, part in enumerate(parts):
            done[part.request] += accepted[number] if number < len(accepted) else part.count
        finished = [r for r in slot_of if done[r] + 6 > tokens]
        for request in finished:
            oracle.check_state(pool, slot_of[request], request, done[request])
            done[request] = 0
            waiting = [r for r in done if r not in slot_of]
            slot_of[waiting[0]] = slot_of.pop(request)
        pool.check_integrity(s for r, s in slot_of.items() if done[r])
    if isinstance(pool, ReplayPool):
        assert pool.flush_count > 0


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_a_freed_slot_survives(kind: str):
    """Preemption: the slot's whole content, cursors too, is worthless; the request starts again elsewhere."""
    pool, layers = pools(3)[kind], make_layers(2, 30, F64)
    oracle = Oracle(layers, 2)
    for round_ in range(3):
        slot = 1 + round_
        for tensor in pool.slot_tensors(slot).values():
            tensor.fill_(float("nan") if tensor.is_floating_point() else 2**31 - 1)
        part = Part(round_ % 2, slot, 0, 9)
        (found,) = step(pool, layers, prefill=[part])
        torch.testing.assert_close(found, oracle.outputs(part), **TIGHT)
        for begin in (9, 12, 15):
            part = Part(round_ % 2, slot, begin, 3)
            (found,) = step(pool, layers, drafted=[part])
            torch.testing.assert_close(found, oracle.outputs(part), **TIGHT)
            pool.commit([slot], [3])
        pool.check_integrity([slot])


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_acceptance_is_seen(kind: str):
    """The comparison has teeth: one accepted token too many, and the next window is far off."""
    pool, layers = pools(3)[kind], make_layers(1, 30, F64)
    oracle = Oracle(layers, 1)
    step(pool, layers, prefill=[Part(0, 1, 0, 6)])
    step(pool, layers, drafted=[Part(0, 1, 6, 3)])
    pool.commit([1], [2])
    part = Part(0, 1, 7, 3)  # as if one had been accepted
    (found,) = step(pool, layers, drafted=[part])
    assert (found[1] - oracle.outputs(part)[1]).abs().max() > 1e-3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("given", [[2, 2**31 - 1, -(2**31)], [2, 99, -5]])
def test_accepted_of_padding_is_not_looked_at(kind: str, given: list[int]):
    pool, layers = pools(3)[kind], make_layers(3, 30, F64)
    step(pool, layers, prefill=[Part(0, 1, 0, 6), Part(1, 2, 0, 6)])
    step(pool, layers, drafted=[Part(0, 1, 6, 3), Part(1, -1, 6, 3), Part(2, -1, 6, 3)])
    before = [t.clone() for s in (0, 2, 3, 4) for t in pool.slot_tensors(s).values()]
    pool.commit([1, -1, -1], given)
    after = [t for s in (0, 2, 3, 4) for t in pool.slot_tensors(s).values()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    Oracle(layers, 1).check_state(pool, 1, 0, 8)
