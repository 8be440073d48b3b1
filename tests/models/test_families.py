"""Both families against `transformers`, with random weights, text with an image in it."""

from itertools import pairwise

import pytest
import torch

from ocrquant.kernels.gated_rms_norm import gated_rms_norm
from ocrquant.kernels.sigmoid_mul import sigmoid_mul
from ocrquant.models.layers.rotary import contiguous_axes, interleaved_axes
from tests.models import reference
from tests.models.stepping import Part, Stepper

LENGTH = 23
VARIANTS = [
    ("qwen3_5", {"tied": False}),
    ("qwen3_5", {"tied": True}),
    ("qwen3_5", {"bias": True}),
    ("paddleocr_vl", {"tied": True}),
    ("paddleocr_vl", {"tied": False, "bias": True}),
]


class Case:
    """A model, a prompt and its logits at every position according to `transformers` in float64."""

    def __init__(self, family, options, dtype=torch.float64):
        self.model = reference.make(family, dtype, **options)
        self.prompt = reference.prompt(LENGTH)
        generator = torch.Generator().manual_seed(1)
        hidden = self.model.config.text_config.hidden_size
        self.images = torch.randn(self.prompt.count, hidden, generator=generator).to(dtype)
        self.ours = reference.ours(self.model)
        self.dtype = dtype

    def expected(self):
        p = self.prompt
        if self.dtype != torch.float64:
            return reference.logits(self.model, p.tokens, p.positions, p.index, self.images)
        with reference.wholly_float64(self.model):
            return reference.logits(self.model, p.tokens, p.positions, p.index, self.images)

    def part(self, begin=0, end=LENGTH, request=0):
        p = self.prompt
        rows = slice(begin, end)
        return Part(request, p.tokens[rows], p.positions[:, rows], p.index[rows], logits="all")

    def stepper(self, **options):
        return Stepper(self.ours, dtype=self.dtype, **options)


@pytest.fixture(scope="module", params=VARIANTS, ids=lambda v: "-".join([v[0], *v[1]]))
def case(request):
    return Case(*request.param)


def test_prefill_equals_transformers(case):
    found = case.stepper().step([case.part()], case.images)
    expected = case.expected()
    assert expected.std() > 0.1
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def test_token_by_token_equals_transformers(case):
    stepper = case.stepper()
    found = [stepper.step([case.part(i, i + 1)], case.images) for i in range(LENGTH)]
    torch.testing.assert_close(torch.cat(found), case.expected(), rtol=0, atol=1e-10)


@pytest.mark.parametrize("cuts", [(9,), (1, 2, 20), (4, 5, 6, 22)])
def test_chunked_prefill_equals_whole_prefill(case, cuts):
    stepper, edges = case.stepper(), [0, *cuts, LENGTH]
    found = [stepper.step([case.part(a, b)], case.images) for a, b in pairwise(edges)]
    whole = case.stepper().step([case.part()], case.images)
    torch.testing.assert_close(torch.cat(found), whole, rtol=0, atol=1e-12)


def swapped_gate(x, qg, out):
    sigmoid_mul(x, torch.cat(qg.chunk(2, dim=-1)[::-1], -1), out)


def late_gate(o, z, weight, eps, out):
    gated_rms_norm(o, z.flip(0), weight, eps, out)


FAULTS = {
    "axes in sections": ("qwen3_5", "families.qwen3_5.interleaved_axes", contiguous_axes),
    "axes dealt out": ("paddleocr_vl", "families.paddleocr_vl.contiguous_axes", interleaved_axes),
    "query for gate": ("qwen3_5", "layers.attention.sigmoid_mul", swapped_gate),
    "gates of other rows": ("qwen3_5", "layers.gated_delta_net.gated_rms_norm", late_gate),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_caught(fault, monkeypatch):
    family, place, wrong = FAULTS[fault]
    monkeypatch.setattr(f"ocrquant.models.{place}", wrong)
    case = Case(family, {})
    found = case.stepper().step([case.part()], case.images)
    assert (found - case.expected()).abs().max() > 1e-4
