"""With every op native: bits that depend on nothing but the request, and a step that can be recorded."""

import pytest
import torch

from ocrquant.kernels.extension import extension
from ocrquant.kernels.program import capture
from ocrquant.kernels.selection import choices, count_launches
from tests.models import reference
from tests.models.stepping import Part, Stepper

OPS = {
    "attention_inputs",
    "causal_conv",
    "embed",
    "gated_delta_rows",
    "gated_rms_norm",
    "linear",
    "paged_attention",
    "rms_norm",
    "rope_table",
    "sigmoid_mul",
    "silu_mul",
}
LENGTHS = (40, 31, 37)


@pytest.fixture(scope="module")
def model():
    model = reference.ours(reference.make("qwen3_5", torch.bfloat16), max_rows=128)
    with count_launches() as launches:
        Stepper(model, dtype=torch.bfloat16).step([part(0, 0, 3)])
    missing = [op for op in OPS if op not in launches or choices()[op].implementation != "native"]
    if missing:
        pytest.skip(f"no native {', '.join(missing)} here" if extension() else "no extension")
    return model


def part(request, begin, end):
    p = reference.prompt(LENGTHS[request], seed=request)
    return Part(request, p.tokens[begin:end], p.positions[:, begin:end], logits="all")


def alone(model, request):
    return Stepper(model, requests=3, dtype=torch.bfloat16).step([part(request, 0, LENGTHS[request])])


@pytest.mark.parametrize("cuts", [(39,), (1, 2, 3), (16, 33)])
def test_chunks_give_the_same_bits(model, cuts):
    stepper, begin, found = Stepper(model, dtype=torch.bfloat16), 0, []
    for end in (*cuts, LENGTHS[0]):
        found.append(stepper.step([part(0, begin, end)]))
        begin = end
    assert torch.equal(torch.cat(found), alone(model, 0))


def test_neighbours_give_the_same_bits(model):
    stepper = Stepper(model, requests=3, dtype=torch.bfloat16)
    first = stepper.step([part(2, 0, 37), part(0, 0, 38), part(1, 0, 30)]).split([37, 38, 30])
    second = stepper.step([part(0, 38, 39), part(1, 30, 31)]).split([1, 1])
    third = stepper.step([part(0, 39, 40)])
    assert torch.equal(first[0], alone(model, 2))
    assert torch.equal(torch.cat([first[1], second[0], third]), alone(model, 0))
    assert torch.equal(torch.cat([first[2], second[1]]), alone(model, 1))


def test_a_recorded_step_gives_the_same_bits(model):
    expected = alone(model, 0)
    stepper = Stepper(model, requests=3, dtype=torch.bfloat16)
    with capture() as program:
        logits = stepper.step([part(0, 0, LENGTHS[0])], keep=program.keep)
    assert logits.isnan().all()
    for _ in range(2):
        program.run()
        assert torch.equal(logits, expected)
