"""The 128x4 layout of block scales: offsets by the published formula, zeros in the padding, and back."""

import pytest
import torch

from ocrquant.formats.scale_layout import swizzle, swizzled_size, unswizzle


def offset(m: int, k: int, columns: int) -> int:
    across = (columns + 3) // 4
    return ((m >> 7) * across + (k >> 2)) * 512 + (m & 31) * 16 + ((m >> 5) & 3) * 4 + (k & 3)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (5, 4), (128, 8), (129, 6), (300, 13), (0, 4)])
def test_every_scale_lies_where_the_formula_says_and_the_rest_is_zero(rows, columns):
    scales = torch.randint(1, 127, (rows, columns), dtype=torch.uint8)
    flat = swizzle(scales)
    assert flat.shape == (swizzled_size(rows, columns),)
    expected = torch.zeros_like(flat)
    for m in range(rows):
        for k in range(columns):
            expected[offset(m, k, columns)] = scales[m, k]
    assert torch.equal(flat, expected)
    assert torch.equal(unswizzle(flat, rows, columns), scales)


def test_sizes_by_hand():
    assert swizzled_size(1, 1) == 512
    assert swizzled_size(128, 4) == 512
    assert swizzled_size(129, 5) == 2048


def test_codes_keep_their_type():
    scales = torch.ones(3, 4).to(torch.float8_e4m3fn)
    assert swizzle(scales).dtype == torch.float8_e4m3fn
    assert torch.equal(unswizzle(swizzle(scales), 3, 4).view(torch.uint8), scales.view(torch.uint8))
