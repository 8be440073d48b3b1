import pytest
import torch

from ocrquant.formats import Precision
from ocrquant.formats.reference import E2M1_GRID, E4M3_GRID, nearest_code
from ocrquant.rounding import compensated, gptq, inverse_factor, nearest_scales, searched_scales, stored

FORMATS = [Precision.FP8, Precision.NVFP4]
GRIDS = {Precision.FP8: E4M3_GRID, Precision.NVFP4: E2M1_GRID}


def textbook(weight, hessian, steps, grid, damping):
    """Optimal brain compression, column by column, with the inverse Hessian of what remains computed anew.

    float64, no factorisation: delta of the remaining weights = -(w - q) / [H⁻¹]cc * [H⁻¹]c.
    """
    weight, hessian = weight.double().clone(), hessian.double()
    hessian = hessian + damping * hessian.diagonal().mean() * torch.eye(len(hessian), dtype=torch.float64)
    rounded = torch.zeros_like(weight)
    for column in range(weight.shape[1]):
        inverse = torch.linalg.inv(hessian[column:, column:])
        for row in range(len(weight)):
            value, step = float(weight[row, column]), float(steps[row, column])
            code = nearest_code(value / step, grid)
            rounded[row, column] = (1.0 if value >= 0 else -1.0) * grid[code] * step
            error = (value - float(rounded[row, column])) / float(inverse[0, 0])
            weight[row, column:] -= error * inverse[0]
    return rounded


def objective(weight, rounded, hessian):
    difference = (weight - rounded).double()
    return float((difference @ hessian.double() * difference).sum())


@pytest.mark.parametrize("precision", FORMATS)
@pytest.mark.parametrize("columns", [16, 128])
def test_equals_the_textbook(precision, columns, monkeypatch, random_weight, correlated_rows):
    weight, rows = random_weight(6, 48), correlated_rows(256, 48)
    hessian = rows.T @ rows / len(rows)
    [scales] = nearest_scales([weight], precision)
    steps = scales.steps().expand(6, 48)
    expected = textbook(weight, hessian, steps, GRIDS[precision], gptq.DAMPING)
    monkeypatch.setattr(gptq, "_COLUMNS", columns)
    found = compensated(weight, scales, inverse_factor(hessian))
    assert torch.allclose(found.double(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("precision", FORMATS)
def test_lowers_the_output_error(precision, random_weight, correlated_rows):
    weight, rows = random_weight(32, 64), correlated_rows(512, 64)
    hessian = rows.T @ rows / len(rows)
    [scales] = searched_scales([weight], precision, hessian.diagonal())
    plain = stored(weight, scales).dequantize()
    better = compensated(weight, scales, inverse_factor(hessian))
    assert objective(weight, better, hessian) < 0.7 * objective(weight, plain, hessian)


@pytest.mark.parametrize("precision", FORMATS)
def test_result_lies_on_the_grid(precision, random_weight, correlated_rows):
    weight, rows = random_weight(16, 64), correlated_rows(256, 64)
    [scales] = searched_scales([weight], precision, rows.square().mean(0))
    found = compensated(weight, scales, inverse_factor(rows.T @ rows))
    assert torch.equal(stored(found, scales).dequantize(), found)


def test_uncorrelated_channels_need_no_compensation(random_weight):
    weight = random_weight(8, 32)
    [scales] = nearest_scales([weight], Precision.NVFP4)
    found = compensated(weight, scales, inverse_factor(torch.diag(torch.rand(32) + 0.1)))
    assert torch.equal(found, stored(weight, scales).dequantize())


def test_scale_of_the_hessian_does_not_matter(random_weight, correlated_rows):
    weight, rows = random_weight(8, 32), correlated_rows(256, 32)
    hessian = rows.T @ rows
    [scales] = nearest_scales([weight], Precision.NVFP4)
    small, large = (compensated(weight, scales, inverse_factor(hessian * f)) for f in (2.0**-40, 2.0**40))
    assert torch.equal(small, large)


def test_factor_is_that_of_the_damped_inverse(correlated_rows):
    rows = correlated_rows(128, 32)
    hessian = rows.T @ rows
    upper = inverse_factor(hessian, 0.05).double()
    damped = hessian.double() + 0.05 * hessian.double().diagonal().mean() * torch.eye(32, dtype=torch.float64)
    assert torch.allclose(upper.T @ upper @ damped, torch.eye(32, dtype=torch.float64), atol=1e-4)
    assert torch.equal(upper, upper.triu())


def test_dead_channels_take_and_give_nothing(random_weight, correlated_rows):
    weight, rows = random_weight(8, 32), correlated_rows(256, 32)
    dead = [0, 7, 31]
    rows[:, dead] = 0.0
    [scales] = nearest_scales([weight], Precision.NVFP4)
    found = compensated(weight, scales, inverse_factor(rows.T @ rows))
    live = [c for c in range(32) if c not in dead]
    assert torch.equal(found[:, dead], stored(weight, scales).dequantize()[:, dead])
    assert not torch.equal(found[:, live], stored(weight, scales).dequantize()[:, live])


@pytest.mark.parametrize(
    "hessian",
    [
        torch.zeros(32, 32),
        torch.ones(32, 32),
        torch.outer(torch.arange(32.0), torch.arange(32.0)),
        # Rounding has made it indefinite: an eigenvalue of -0.5 beside one of 1.5.
        torch.eye(32) - 0.5 * torch.ones(32, 32) / 32 * 3,
        torch.full((32, 32), 1e-30),
    ],
)
def test_singular_and_indefinite_hessians_are_survived(hessian, random_weight):
    weight = random_weight(8, 32)
    [scales] = nearest_scales([weight], Precision.FP8)
    factor = inverse_factor(hessian)
    assert bool(torch.isfinite(factor).all())
    found = compensated(weight, scales, factor)
    assert bool(torch.isfinite(found).all())


def test_zero_rows_stay_zero(random_weight, correlated_rows):
    weight, rows = random_weight(8, 32), correlated_rows(64, 32)
    weight[3] = 0.0
    for precision in FORMATS:
        [scales] = searched_scales([weight], precision, torch.ones(32))
        assert bool((compensated(weight, scales, inverse_factor(rows.T @ rows))[3] == 0).all())
