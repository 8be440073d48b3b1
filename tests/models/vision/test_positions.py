"""Index arithmetic against that of transformers, bit for bit, and by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import vision_utils

from ocrquant.errors import ShapeError
from ocrquant.models.vision.positions import (
    bilinear_taps,
    block_order,
    pack_grids,
    patch_coordinates,
    rotary_rows,
)
from ocrquant.models.vision.reading import axial_frequencies

SIZES = [(2, 2), (4, 6), (8, 10), (2, 40), (54, 2), (28, 28)]


def test_blocks_of_a_small_frame():
    row, column = patch_coordinates(4, 4, 2)
    assert list(zip(row.tolist(), column.tolist(), strict=True))[:6] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
        (0, 2),
        (0, 3),
    ]
    assert block_order(2, 4, 2).tolist() == [0, 1, 4, 5, 2, 3, 6, 7]


@pytest.mark.parametrize("merge", [1, 2])
@pytest.mark.parametrize("size", SIZES)
def test_coordinates_equal_transformers(size, merge):
    expected = vision_utils.get_vision_position_ids(torch.tensor([[1, *size]]), merge)
    assert np.array_equal(np.stack(patch_coordinates(*size, merge), axis=1), expected.numpy())


@pytest.mark.parametrize("align_corners", [True, False])
@pytest.mark.parametrize("merge", [1, 2])
@pytest.mark.parametrize("side", [7, 27, 48])
def test_taps_equal_transformers_bit_for_bit(side, merge, align_corners):
    for size in [*SIZES, (1, 1), (1, 5)] if merge == 1 else SIZES:
        index, weight = vision_utils.get_vision_interpolation_indices_and_weights(
            torch.tensor([[1, *size]]), side, "bilinear", align_corners, merge
        )
        found = bilinear_taps(*size, side, merge, align_corners=align_corners)
        assert np.array_equal(found[0], index.numpy())
        assert np.array_equal(found[1], weight.numpy())


def test_corners_take_the_corners_of_the_table():
    index, weight = bilinear_taps(3, 3, 7, 1)
    used = [
        dict(zip(i[w > 0].tolist(), w[w > 0].tolist(), strict=True))
        for i, w in zip(index, weight, strict=True)
    ]
    assert (used[0], used[2], used[4], used[8]) == ({0: 1.0}, {6: 1.0}, {24: 1.0}, {48: 1.0})
    _, half = bilinear_taps(3, 3, 7, 1, align_corners=False)
    assert half[0].max() < 0.5  # the corner of the image lies between entries of the table


def test_rotary_is_rows_then_columns():
    frequencies = axial_frequencies(16, 10000.0)
    cos, sin = rotary_rows(4, 6, 2, frequencies.numpy())
    row, column = (torch.from_numpy(axis).float()[:, None] for axis in patch_coordinates(4, 6, 2))
    angles = torch.cat([row * frequencies, column * frequencies], dim=1)
    torch.testing.assert_close(torch.from_numpy(cos), angles.cos(), rtol=0, atol=1.2e-7)
    torch.testing.assert_close(torch.from_numpy(sin), angles.sin(), rtol=0, atol=1.2e-7)


def test_a_position_turns_alike_in_every_grid():
    frequencies = axial_frequencies(72, 10000.0).numpy()
    small, large = rotary_rows(3, 5, 1, frequencies)[0], rotary_rows(90, 70, 1, frequencies)[0]
    assert np.array_equal(small.reshape(3, 5, -1), large.reshape(90, 70, -1)[:3, :5])


def test_frames_attend_to_themselves():
    packed = pack_grids([(1, 4, 6), (2, 2, 4), (1, 2, 2)], 2)
    assert packed.starts.tolist() == [0, 24, 32, 40, 44]
    assert packed.sizes == ((4, 6), (2, 4), (2, 4), (2, 2))
    assert (packed.num_patches, packed.num_tokens) == (44, 11)
    assert packed.starts.dtype == np.int32


def test_ragged_grid_is_refused():
    with pytest.raises(ShapeError, match="multiples of 2"):
        pack_grids([(1, 4, 6), (1, 5, 6)], 2)
