"""KL from logits against numbers worked out by hand and against float64."""

import math

import pytest
import torch

from ocrquant.errors import ShapeError
from ocrquant.metrics.divergence import kl_from_logits


def exact(reference, other):
    log_p, log_q = reference.double().log_softmax(-1), other.double().log_softmax(-1)
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def test_by_hand():
    # p = (3/4, 1/4), q = (1/2, 1/2)
    reference, other = torch.tensor([[3.0, 1.0]]).log(), torch.zeros(1, 2)
    forward = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    backward = 0.5 * math.log(2 / 3) + 0.5 * math.log(2)
    assert kl_from_logits(reference, other).item() == pytest.approx(forward, rel=1e-6)
    assert kl_from_logits(other, reference).item() == pytest.approx(backward, rel=1e-6)
    # Adding a constant to a row of logits changes nothing.
    assert kl_from_logits(reference + 50, other - 7).item() == pytest.approx(forward, rel=1e-5)


def test_identical_logits_give_exactly_zero():
    logits = torch.randn(3, 5, 700) * 10
    result = kl_from_logits(logits, logits.clone())
    assert result.shape == (3, 5)
    assert not result.any()


@pytest.mark.parametrize("noise", [1e-3, 1e-2, 1e-1, 1.0])
def test_small_divergences_are_accurate(noise):
    generator = torch.Generator().manual_seed(0)
    reference = torch.randn(8, 20_000, generator=generator) * 4
    other = reference + torch.randn(8, 20_000, generator=generator) * noise
    result = kl_from_logits(reference, other)
    assert (result >= 0).all()
    assert torch.allclose(result.double(), exact(reference, other), rtol=1e-5, atol=2e-7)


def test_chunks_change_nothing_and_bound_the_memory(monkeypatch):
    reference, other = torch.randn(4, 9, 50), torch.randn(4, 9, 50)
    whole = kl_from_logits(reference, other)
    rows = []
    softmax = torch.Tensor.log_softmax
    monkeypatch.setattr(torch.Tensor, "log_softmax", lambda x, dim: rows.append(len(x)) or softmax(x, dim))
    assert torch.equal(kl_from_logits(reference, other, max_elements=350), whole)
    assert set(rows) == {7, 1}  # 36 rows in pieces of 7, each tensor on its own
    rows.clear()
    assert torch.equal(kl_from_logits(reference, other, max_elements=1), whole)
    assert set(rows) == {1}


def test_bfloat16_logits_are_compared_in_float32():
    reference = (torch.randn(4, 300) * 3).bfloat16()
    other = (reference.float() + torch.randn(4, 300) * 0.1).bfloat16()
    result = kl_from_logits(reference, other)
    assert result.dtype == torch.float32
    assert torch.allclose(result.double(), exact(reference, other), rtol=1e-4, atol=2e-7)


def test_masked_tokens():
    reference, other = (
        torch.tensor([[0.0, 0.0, -torch.inf]]),
        torch.tensor([[0.0, math.log(3.0), -torch.inf]]),
    )
    expected = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    assert kl_from_logits(reference, other).item() == pytest.approx(expected, rel=1e-6)
    # Weight on a token that the other model rules out is infinitely surprising; the reverse is finite.
    allowed = torch.zeros(1, 3)
    assert kl_from_logits(allowed, reference).item() == math.inf
    assert kl_from_logits(reference, allowed).item() == pytest.approx(math.log(1.5), rel=1e-6)


def test_extreme_logits_stay_finite():
    reference = torch.tensor([[0.0, 500.0], [1e4, -1e4]])
    result = kl_from_logits(reference, reference.flip(-1))
    assert result.tolist() == pytest.approx([500.0, 2e4], rel=1e-6)


def test_broken_logits_show():
    logits = torch.zeros(3, 4)
    logits[1, 2] = torch.nan
    logits[2, 0] = torch.inf
    assert kl_from_logits(logits, torch.zeros(3, 4)).isnan().tolist() == [False, True, True]
    assert kl_from_logits(torch.zeros(3, 4), logits).isnan().tolist() == [False, True, True]


def test_shapes():
    assert kl_from_logits(torch.zeros(0, 5), torch.zeros(0, 5)).shape == (0,)
    assert kl_from_logits(torch.zeros(5), torch.zeros(5)).shape == ()
    for other in (torch.zeros(2, 6), torch.zeros(1, 5), torch.zeros(2, 0)):
        with pytest.raises(ShapeError, match=r"of shape \[2, 5\], got"):
            kl_from_logits(torch.zeros(2, 5), other)
    with pytest.raises(ShapeError):
        kl_from_logits(torch.zeros(2, 0), torch.zeros(2, 0))


def test_no_gradient_graph():
    assert not kl_from_logits(torch.zeros(2, 3, requires_grad=True), torch.zeros(2, 3)).requires_grad
