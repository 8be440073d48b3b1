"""In bf16 this model and that of `transformers` round at the same places: both miss the truth by as much."""

import pytest
import torch

from tests.models import reference
from tests.models.stepping import Part, Stepper

LENGTH = 40
# Measured: 0.79 to 1.15.
MAX_ERROR_RATIO = 1.25
# A choice between two tokens this many errors apart is no matter of rounding.
NOISE = 6


def rms(x):
    return x.double().pow(2).mean().sqrt().item()


@pytest.mark.parametrize("family", ["qwen3_5", "paddleocr_vl"])
@pytest.mark.parametrize("seed", range(3))
def test_errors_are_those_of_transformers(family, seed):
    model = reference.make(family, torch.bfloat16, seed)
    exact = reference.make(family, torch.bfloat16, seed).double()
    p = reference.prompt(LENGTH, seed)
    images = torch.randn(p.count, model.config.text_config.hidden_size).bfloat16()
    with reference.wholly_float64(exact):
        truth = reference.logits(exact, p.tokens, p.positions, p.index, images.double())
    theirs = reference.logits(model, p.tokens, p.positions, p.index, images)
    stepper = Stepper(reference.ours(model), dtype=torch.bfloat16)
    ours = stepper.step([Part(0, p.tokens, p.positions, p.index, logits="all")], images)
    error, their_error = rms(ours - truth), rms(theirs - truth)
    assert error < MAX_ERROR_RATIO * their_error
    best = theirs.float().topk(2).values
    clear = best[:, 0] - best[:, 1] > NOISE * their_error
    assert clear.float().mean() > 0.5
    assert torch.equal(ours.argmax(-1)[clear], theirs.argmax(-1)[clear])
