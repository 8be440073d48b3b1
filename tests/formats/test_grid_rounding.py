"""Rounding to the grids against the definition, and the guards that belong to every format."""

from itertools import pairwise

import pytest
import torch

from ocrquant.errors import ShapeError, WeightValueError
from ocrquant.formats import rounding
from ocrquant.formats.reference import E2M1_GRID, E4M3_GRID, nearest_code
from ocrquant.formats.rounding import E2M1, E4M3, map_rows, require_finite, round_to_grid_, tensor_amax

GRIDS = pytest.mark.parametrize(("grid", "points"), [(E2M1, E2M1_GRID), (E4M3, E4M3_GRID)])


def test_grids_are_those_of_the_definition():
    assert E2M1_GRID == (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
    assert E4M3_GRID[:3] == (0.0, 2.0**-9, 2.0**-8)
    assert E4M3_GRID[8] == 2.0**-6
    assert E4M3_GRID[0x38] == 1.0
    assert E4M3_GRID[-2:] == (416.0, 448.0)
    assert len(E4M3_GRID) == 127


def around_every_point_and_midpoint(points):
    """Grid points, midpoints and their neighbours in float32, of both signs, and values beyond the grid."""
    middles = [(low + high) / 2 for low, high in pairwise(points)]
    exact = torch.tensor([*points, *middles, points[-1] * 1.04, points[-1] * 1.2, 1e30, 1e-30])
    up, down = (torch.nextafter(exact, torch.tensor(to)) for to in (torch.inf, -torch.inf))
    values = torch.cat([exact, up, down])
    return torch.cat([values, -values])


@GRIDS
def test_rounding_equals_the_definition_at_every_boundary(grid, points):
    values = around_every_point_and_midpoint(points)
    expected = [(-1) ** (value < 0) * points[nearest_code(value, points)] for value in values.tolist()]
    assert round_to_grid_(values.clone(), grid).tolist() == expected


@GRIDS
def test_rounding_equals_the_definition_for_every_bfloat16(grid, points):
    values = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
    values = values[~values.isnan()]
    positive = values[values >= 0].tolist()
    expected = torch.tensor([points[nearest_code(value, points)] for value in positive])
    assert torch.equal(round_to_grid_(values[values >= 0].clone(), grid), expected)
    assert torch.equal(round_to_grid_(-values[values >= 0], grid), -expected)


@GRIDS
def test_nan_and_infinity(grid, points):
    values = round_to_grid_(torch.tensor([torch.nan, torch.inf, -torch.inf]), grid)
    assert values[0].isnan()
    assert values[1:].tolist() == [points[-1], -points[-1]]


def test_the_comparison_sees_a_wrong_tie_rule():
    values = around_every_point_and_midpoint(E2M1_GRID)
    values = values[values >= 0]
    middles = torch.tensor([(low + high) / 2 for low, high in pairwise(E2M1_GRID)])
    half_down = torch.tensor(E2M1_GRID)[torch.bucketize(values, middles)]
    wrong = values[half_down != round_to_grid_(values.clone(), E2M1)]
    assert wrong.unique().tolist() == [0.75, 1.75, 3.5]  # the ties that go up


def test_pieces_give_the_same_as_the_whole(monkeypatch):
    rows, scales = torch.randn(37, 16), torch.rand(37, 1)
    whole = map_rows(torch.mul, rows, scales, torch.bfloat16)
    monkeypatch.setattr(rounding, "_CPU_PIECE", 5 * 16)
    seen = []

    def record(part, scale):
        seen.append(len(part))
        return part * scale

    assert torch.equal(map_rows(record, rows, scales, torch.bfloat16), whole)
    assert seen == [5] * 7 + [2]
    assert torch.equal(map_rows(torch.mul, rows, scales[:1], torch.float32), rows * scales[0])


def test_amax_over_members():
    query, key = torch.tensor([[1.0, -7.0]]), torch.tensor([[3.0, 2.0]], dtype=torch.bfloat16)
    assert tensor_amax(query).tolist() == [7.0]
    assert tensor_amax(key, query).tolist() == [7.0]
    assert tensor_amax(torch.empty(0), key).tolist() == [3.0]
    assert tensor_amax(key, torch.tensor([torch.nan])).isnan().item()
    with pytest.raises(ShapeError, match="at least one element, got none"):
        tensor_amax(torch.empty(0, 16))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_one_bad_value_is_found_and_named(dtype, value):
    weight = torch.zeros(40, 50, dtype=dtype)
    weight[-1, -1] = value
    with pytest.raises(WeightValueError) as refusal:
        require_finite("layers.3.mlp.up_proj.weight", weight)
    num_nan, num_inf = (1, 0) if value != value else (0, 1)
    assert str(refusal.value) == (
        f"layers.3.mlp.up_proj.weight: expected finite values, got {num_nan} NaN and {num_inf} Inf "
        "among 2000 of shape [40, 50]; repair or re-download this weight"
    )


def test_nan_and_infinity_together_are_both_counted():
    with pytest.raises(WeightValueError, match="2 NaN and 1 Inf among 4"):
        require_finite("w", torch.tensor([torch.nan, -torch.inf, torch.nan, 0.0]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_finite_tensors_pass(dtype):
    largest = torch.finfo(dtype).max
    require_finite("w", torch.tensor([largest, -largest, 0.0], dtype=dtype))
    require_finite("empty", torch.empty(0, dtype=dtype))
