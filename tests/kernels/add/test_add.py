import pytest
import torch

from ocrquant.errors import ShapeError
from ocrquant.kernels.add import add
from ocrquant.kernels.add.reference import add_reference

BF16 = torch.bfloat16


@pytest.mark.parametrize("shape", [(1, 1), (3, 17), (0, 8), (64, 4096), (5, 0)])
def test_equals_the_reference_bit_for_bit(shape):
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(shape, generator=generator).to(BF16) for _ in range(2))
    out, expected = torch.empty_like(a), torch.empty_like(a)
    add(a, b, out)
    add_reference(a, b, expected)
    assert torch.equal(out.view(torch.int16), expected.view(torch.int16))


def test_rounds_ties_to_even_and_keeps_nan_and_infinity():
    a = torch.tensor([[1.0, 1.0078125, float("nan"), float("inf"), -0.0, 3.3895e38]], dtype=BF16)
    b = torch.tensor([[2.0**-8, 2.0**-8, 1.0, 1.0, -0.0, 3.3895e38]], dtype=BF16)
    out = torch.empty_like(a)
    add(a, b, out)
    assert out[0, :2].tolist() == [1.0, 1.015625]
    assert out[0, 2].isnan()
    assert out[0, 3:].tolist() == [float("inf"), 0.0, float("inf")]
    assert torch.signbit(out[0, 4])


def test_adds_in_place():
    a = torch.ones(2, 3, dtype=BF16)
    add(a, torch.ones(2, 3, dtype=BF16), a)
    assert a.tolist() == [[2.0] * 3] * 2


def test_refuses_another_shape():
    a = torch.ones(2, 3, dtype=BF16)
    with pytest.raises(ShapeError, match=r"op add: b: expected shape \[R, w\] with w = 3, got \[2, 4\]"):
        add(a, torch.ones(2, 4, dtype=BF16), a)


@pytest.mark.parametrize("shape", [(3, 17), (64, 1500)])
def test_a_sum_may_lie_in_columns_of_something_wider(shape):
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(shape, generator=generator).to(BF16) for _ in range(2))
    wide = torch.full((shape[0], 3 * shape[1]), 9.0, dtype=BF16)
    add(a, b, wide[:, shape[1] : 2 * shape[1]])
    assert torch.equal(wide[:, shape[1] : 2 * shape[1]], a + b)
    assert (wide[:, : shape[1]] == 9).all()
    assert (wide[:, 2 * shape[1] :] == 9).all()
