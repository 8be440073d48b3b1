import pytest
import torch

from ocrquant.rounding import candidates, column_magnitude, fold_norm


@pytest.mark.parametrize("offset", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_fold_moves_the_multiplier_into_the_vector(offset, dtype):
    generator = torch.Generator().manual_seed(0)
    weight = (torch.rand(64, generator=generator) + 0.1).to(dtype)
    smoothing = torch.rand(64, generator=generator) * 4 + 0.25
    folded, vector = fold_norm(weight, smoothing, offset=offset)
    shift = 1.0 if offset else 0.0
    before, after = weight.double() + shift, folded.double() + shift
    assert folded.dtype == dtype
    # Exact up to the rounding of the float32 vector, whatever the dtype of the norm.
    assert torch.allclose(after * vector.double(), before, rtol=2.0**-23, atol=0)
    # The vector is the one asked for up to the rounding of the new weight.
    assert torch.allclose(vector, smoothing, rtol=0.05)


def test_fold_by_hand():
    folded, vector = fold_norm(torch.tensor([0.5, 1.0]), torch.tensor([2.0, 0.5]), offset=True)
    assert folded.tolist() == [-0.25, 3.0]
    assert vector.tolist() == [2.0, 0.5]
    folded, vector = fold_norm(torch.tensor([0.5, 1.0]), torch.tensor([2.0, 0.5]), offset=False)
    assert folded.tolist() == [0.25, 2.0]


def test_channels_that_cannot_be_moved_stay():
    # Multiplier zero, multiplier that bf16 would round to zero, and an ordinary negative one.
    weight = torch.tensor([-1.0, -0.99609375, -3.0], dtype=torch.bfloat16)
    folded, vector = fold_norm(weight, torch.tensor([2.0, 16.0, 2.0]), offset=True)
    assert folded.tolist() == [-1.0, -0.99609375, -2.0]
    assert vector.tolist() == [1.0, 1.0, 2.0]


def test_candidates_are_usable_and_differ(correlated_rows):
    activation = correlated_rows(64, 32, loud=(3,)).square().mean(0).sqrt()
    column = column_magnitude([torch.rand(8, 32), torch.rand(24, 32)])
    found = list(candidates(activation, column))
    assert len(found) >= 8
    for candidate in found:
        assert bool(torch.isfinite(candidate.smoothing).all())
        assert bool((candidate.smoothing > 0).all())
        assert int(candidate.smoothing.argmax()) == 3
    assert len({tuple(c.smoothing.tolist()) for c in found}) == len(found)


def test_dead_channels_are_not_moved():
    activation, column = torch.rand(16) + 0.5, torch.rand(16) + 0.5
    activation[2], column[5] = 0.0, 0.0
    for candidate in candidates(activation, column):
        assert candidate.smoothing[[2, 5]].tolist() == [1.0, 1.0]


def test_nothing_to_try_where_all_is_dead():
    assert list(candidates(torch.zeros(16), torch.ones(16))) == []


def test_column_magnitude_is_over_all_rows():
    found = column_magnitude([torch.tensor([[3.0, 0.0]]), torch.tensor([[4.0, 0.0], [0.0, 2.0]])])
    assert torch.allclose(found, torch.tensor([25.0 / 3.0, 4.0 / 3.0]).sqrt())
