import pytest
import torch

from ocrquant.errors import ShapeError
from ocrquant.kernels.pixel_values import pixel_values
from ocrquant.kernels.pixel_values.reference import pixel_values_reference
from ocrquant.kernels.program import capture
from tests.kernels.producing import BF16, LEVELS, instruction_set, needs_native, threads

CHANNELS = 3


def make(rows, frames, pixels, dtype=BF16):
    generator = torch.Generator().manual_seed(rows)
    codes = torch.randint(0, 256, (rows, CHANNELS, pixels), generator=generator, dtype=torch.uint8)
    levels = torch.randn(CHANNELS, 256, generator=generator).to(dtype)
    return codes, levels, torch.full((rows, CHANNELS, frames, pixels), 7.0, dtype=dtype)


def expected(codes, levels, frames):
    channel = torch.arange(CHANNELS)[None, :, None]
    return levels[channel, codes.long()][:, :, None].expand(-1, -1, frames, -1)


@pytest.mark.parametrize("op", [pixel_values, pixel_values_reference])
@pytest.mark.parametrize("dtype", [BF16, torch.float32])
@pytest.mark.parametrize(("rows", "frames", "pixels"), [(1, 1, 1), (33, 2, 100), (4, 3, 196), (0, 2, 16)])
def test_every_frame_has_the_level_of_its_pixel(op, dtype, rows, frames, pixels):
    codes, levels, out = make(rows, frames, pixels, dtype)
    op(codes, levels, out)
    assert torch.equal(out, expected(codes, levels, frames))


@needs_native
@pytest.mark.parametrize("isa", LEVELS)
def test_levels_are_not_touched_whatever_they_are(isa):
    codes, levels, out = make(700, 2, 100)  # as much as several threads share
    bits = levels.view(torch.int16)
    bits[:] = torch.arange(CHANNELS * 256).view(CHANNELS, 256) * 85 - 32768  # NaN and subnormal numbers too
    with instruction_set(isa), threads(2):
        pixel_values(codes, levels, out)
    assert torch.equal(out.view(torch.int16), expected(codes, bits, 2))


@needs_native
def test_a_replay_follows_its_input():
    codes, levels, out = make(5, 2, 16)
    with capture() as program:
        pixel_values(codes, levels, out)
    codes.fill_(3)
    program.run()
    assert torch.equal(out, expected(codes, levels, 2))


def test_refuses_what_its_contract_excludes():
    codes, levels, out = make(2, 2, 16)
    with pytest.raises(ShapeError, match=r"op pixel_values: levels: expected shape \[c, 256\]"):
        pixel_values(codes, levels[:, :255].contiguous(), out)
    with pytest.raises(ShapeError, match=r"op pixel_values: out: expected .* p = 16, got \[2, 3, 2, 15\]"):
        pixel_values(codes, levels, out[..., :15].contiguous())
