"""The device maths, compiled for the host, against ocrquant.formats."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ocrquant.formats import nvfp4
from ocrquant.formats.scale_layout import swizzle
from ocrquant.kernels.cuda import convert, missing_reason, swizzle_scales

pytestmark = pytest.mark.skipif(bool(missing_reason("cpu")), reason=missing_reason("cpu") or "built")

ONE = torch.ones(1)
E4M3 = torch.float8_e4m3fn


def all_bf16() -> Tensor:
    return torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()


def around_ties(grid: Tensor) -> Tensor:
    """Midpoints of neighbours on the grid and the floats on both sides, both signs."""
    middle = (grid[1:] + grid[:-1]) / 2
    up, down = (torch.nextafter(middle, torch.tensor(x)) for x in (torch.inf, 0.0))
    values = torch.cat([grid, middle, up, down])
    return torch.cat([values, -values])


def e4m3_grid() -> Tensor:
    return torch.arange(0x7F, dtype=torch.uint8).view(E4M3).float()


def some_floats() -> Tensor:
    bits = torch.randint(-(2**31), 2**31, (200_000,), generator=torch.Generator().manual_seed(0))
    return bits.to(torch.int32).view(torch.float32)


def bits(x: Tensor) -> Tensor:
    return x.view(torch.int16)


INPUTS = {
    "every bf16": all_bf16,
    "E4M3 ties": lambda: around_ties(e4m3_grid()),
    "E2M1 ties": lambda: around_ties(torch.tensor([0.0, 0.5, 1, 1.5, 2, 3, 4, 6])),
    "floats": some_floats,
    "edges": lambda: torch.tensor(
        [448.0, 463.9, 464, 465, 500, torch.inf, -torch.inf, torch.nan, -0.0, 0.0, 2**-10]
    ),
}


@pytest.mark.parametrize("inputs", INPUTS)
def test_conversions_are_those_of_the_formats(inputs: str):
    x = INPUTS[inputs]().contiguous()
    bf16, e4m3, e2m1 = convert(x)
    number = ~x.isnan()
    torch.testing.assert_close(bits(bf16)[number], bits(x.bfloat16())[number], rtol=0, atol=0)
    assert bf16[~number].isnan().all()  # torch's own NaN depends on the processor
    wanted = x.clamp(-448, 448).to(E4M3).view(torch.uint8)
    torch.testing.assert_close(e4m3, wanted, rtol=0, atol=0)
    blocks = torch.nn.functional.pad(x, (0, -len(x) % 16)).view(-1, 16)
    codes = nvfp4.encode(blocks, torch.ones(len(blocks), 1), ONE).flatten()[: len(x)]
    torch.testing.assert_close(e2m1, codes, rtol=0, atol=0)


def test_conversions_by_hand():
    x = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 7.0, -6.0, -0.1, torch.nan])
    assert convert(x)[2].tolist() == [0, 2, 2, 4, 4, 6, 6, 7, 15, 8, 7]
    assert convert(torch.tensor([500.0, torch.inf, 0.001, 0.003, -(2.0**-10)]))[1].tolist() == [
        0x7E,
        0x7E,
        0x01,
        0x02,
        0x80,
    ]


@pytest.mark.parametrize(("rows", "scales"), [(1, 1), (7, 5), (128, 4), (129, 12), (300, 9)])
def test_swizzled_scales(rows: int, scales: int):
    scale = torch.randint(0, 256, (rows, scales), dtype=torch.uint8)
    assert torch.equal(swizzle_scales(scale), swizzle(scale))


def test_swizzled_offsets_by_hand():
    scale = torch.zeros(160, 8, dtype=torch.uint8)
    for value, (row, column) in enumerate(((0, 1), (1, 0), (32, 0), (0, 4), (128, 0), (159, 7)), start=1):
        scale[row, column] = value
    places = swizzle_scales(scale).nonzero().flatten().tolist()
    assert places == [1, 4, 16, 512, 1024, 1024 + 512 + 31 * 16 + 3]
