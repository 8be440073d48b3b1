"""A request's logits are its own: not its neighbours', not those of the last owner of its slot."""

import pytest
import torch

from tests.models import reference
from tests.models.stepping import Part, Stepper

LENGTHS = (23, 17, 30)


@pytest.fixture(scope="module", params=["qwen3_5", "paddleocr_vl"])
def model(request):
    return reference.ours(reference.make(request.param, torch.float64))


def part(request, begin, end, logits="all"):
    p = reference.prompt(LENGTHS[request], seed=request)
    rows = slice(begin, end)
    return Part(request, p.tokens[rows], p.positions[:, rows], logits=logits)


def alone(model, request):
    stepper = Stepper(model, requests=3, dtype=torch.float64)
    return stepper.step([part(request, 0, LENGTHS[request])])


def test_prefill_and_decode_in_one_step(model):
    stepper = Stepper(model, requests=3, dtype=torch.float64)
    found = {0: [stepper.step([part(0, 0, 20)])], 1: [], 2: []}
    first = stepper.step([part(0, 20, 21), part(1, 0, 9), part(2, 0, 4)])
    for request, rows in zip((0, 1, 2), first.split([1, 9, 4]), strict=True):
        found[request].append(rows)
    second = stepper.step([part(0, 21, 22), part(2, 4, 5), part(1, 9, 17)])
    for request, rows in zip((0, 2, 1), second.split([1, 1, 8]), strict=True):
        found[request].append(rows)
    third = stepper.step([part(0, 22, 23), part(2, 5, 30)])
    for request, rows in zip((0, 2), third.split([1, 25]), strict=True):
        found[request].append(rows)
    for request, rows in found.items():
        torch.testing.assert_close(torch.cat(rows), alone(model, request), rtol=0, atol=1e-12)


def test_a_slot_and_its_pages_can_have_another_owner(model):
    stepper = Stepper(model, requests=1, dtype=torch.float64)
    stepper.step([Part(0, part(1, 0, 17).tokens, part(1, 0, 17).positions)])
    stepper.lengths.clear()
    found = stepper.step([part(0, 0, LENGTHS[0])])
    torch.testing.assert_close(found, alone(model, 0), rtol=0, atol=1e-12)


def test_only_wanted_rows_have_logits(model):
    stepper = Stepper(model, requests=3, dtype=torch.float64)
    last = stepper.step([part(0, 0, 23, logits="last"), part(2, 0, 30, logits="last")])
    assert len(last) == 2
    torch.testing.assert_close(last[0], alone(model, 0)[-1], rtol=0, atol=1e-12)
    torch.testing.assert_close(last[1], alone(model, 2)[-1], rtol=0, atol=1e-12)


def test_a_step_may_want_no_logits(model):
    stepper = Stepper(model, requests=3, dtype=torch.float64)
    assert len(stepper.step([part(0, 0, 9, logits="none")])) == 0
    rest = stepper.step([part(0, 9, 23)])
    torch.testing.assert_close(rest, alone(model, 0)[9:], rtol=0, atol=1e-12)
