"""Rows of a block convolved: by hand, against the drafter's own module, block by block."""

import pytest
import torch

from ocrquant.drafter.convolution import LocalConvolution
from ocrquant.errors import ShapeError
from ocrquant.kernels.local_convolution import local_convolution
from ocrquant.kernels.local_convolution.reference import local_convolution_reference
from tests.kernels.delta_making import plain_instructions

BF16 = torch.bfloat16
OPS = pytest.mark.parametrize("op", [local_convolution, local_convolution_reference])


def case(rows=12, width=48, taps=2, group=16, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(shape, generator=generator).to(BF16)

    return random(rows, width), random(2, taps, width), random(rows, 2, taps, width // group)


@OPS
def test_by_hand(op):
    y = torch.tensor([[1.0, 2], [3, 4], [5, 6], [7, 8]], dtype=BF16)
    base = torch.tensor([[[9.0, 9], [9, 9]], [[1, 1], [0, 2]]], dtype=BF16)
    added = torch.zeros(4, 2, 2, 1, dtype=BF16)
    added[3, 1, 0] = 1  # the last row counts itself twice
    out = torch.empty_like(y)
    op(y, base, added, 2, 1, out)
    # Blocks of two: before each first row are zeros.
    assert out.tolist() == [[1, 2], [3, 4 + 2 * 2], [5, 6], [14, 16 + 2 * 6]]


@OPS
@pytest.mark.parametrize("taps", [1, 2, 5])
@pytest.mark.parametrize("block", [1, 3, 12])
@pytest.mark.parametrize("side", [0, 1])
def test_is_the_module_of_the_drafter(op, taps, block, side):
    y, base, added = case(taps=taps)
    module = LocalConvolution(48, taps, 16).double()
    module.base_kernel.data.copy_(base)
    kernels = module.base_kernel + added.double().repeat_interleave(16, -1)
    blocks = y.double().unflatten(0, (-1, block)), kernels.unflatten(0, (-1, block))
    # The module pads what is shifted out of a block, which must not be longer than the block.
    steps = min(taps, block)
    module.taps = steps
    expected = module.convolve(*blocks, side).flatten(0, 1)
    out = torch.empty_like(y)
    op(y, base, added, block, side, out)
    torch.testing.assert_close(out.double(), expected, rtol=2.0**-7, atol=2.0**-7)


def test_native_rounds_once():
    y, base, added = case(rows=64, width=192)
    out, exact = torch.empty_like(y), torch.empty(64, 192, dtype=torch.float64)
    local_convolution(y, base, added, 16, 0, out)
    local_convolution_reference(y.double(), base.double(), added.double(), 16, 0, exact)
    steps = (out.view(torch.int16).int() - exact.to(BF16).view(torch.int16).int()).abs()
    assert int(steps.max()) <= 1
    assert float((steps > 0).float().mean()) < 1e-2


@pytest.mark.parametrize(("width", "group"), [(48, 16), (192, 32), (48, 8), (40, 4), (96, 48)])
def test_the_plain_build_has_the_same_bits(width, group):
    y, base, added = case(rows=32, width=width, group=group, taps=3)
    best, plain = torch.empty_like(y), torch.empty_like(y)
    local_convolution(y, base, added, 16, 1, best)
    with plain_instructions():
        local_convolution(y, base, added, 16, 1, plain)
    assert torch.equal(best, plain)


def test_other_blocks_change_nothing():
    y, base, added = case()
    whole, one = torch.empty_like(y), torch.empty(4, 48, dtype=BF16)
    local_convolution(y, base, added, 4, 0, whole)
    local_convolution(y[4:8].clone(), base, added[4:8].clone(), 4, 0, one)
    assert torch.equal(whole[4:8], one)


def test_refuses_what_its_contract_excludes():
    y, base, added = case()
    for changes, message in (
        ({"block": 5}, "whole blocks of rows"),
        ({"side": 2}, "side: expected 0 to 1"),
        ({"out": y}, "memory of its own"),
        ({"added": added[:, :, :1]}, "with taps = 2"),
        ({"added": added.repeat(1, 1, 1, 2)[..., :5].contiguous()}, "a divisor of 48 groups"),
    ):
        given = {"y": y, "base": base, "added": added, "block": 4, "side": 0, "out": torch.empty_like(y)}
        with pytest.raises(ShapeError, match=message):
            local_convolution(**given | changes)
