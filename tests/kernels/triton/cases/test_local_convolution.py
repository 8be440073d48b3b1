"""The drafter's convolution in Triton against its definition, bit for bit."""

from __future__ import annotations

import pytest
import torch

from ocrquant.kernels.local_convolution import local_convolution
from ocrquant.kernels.local_convolution.reference import local_convolution_reference
from ocrquant.kernels.selection import choices
from tests.kernels.triton.cases.making import BF16, DEVICE, IS_INTERPRETED, randn, raw


@pytest.mark.parametrize(
    ("block", "taps", "group", "width"), [(4, 2, 16, 48), (2, 3, 4, 1040), (1, 2, 8, 16)]
)
@pytest.mark.parametrize("side", [0, 1])
def test_equals_its_definition(block, taps, group, width, side):
    rows = 2 * block
    y, base = randn(rows, width), randn(2 * taps, width, seed=1).view(2, taps, width)
    added = randn(rows, 2, taps, width // group, seed=2)
    ours, wanted = (torch.full((rows, width), torch.nan, device=DEVICE).to(BF16) for _ in range(2))
    local_convolution(y, base, added, block, side, ours)
    local_convolution_reference(y, base, added, block, side, wanted)
    assert choices()["local_convolution"].implementation == "triton"
    if IS_INTERPRETED:
        assert torch.equal(raw(ours), raw(wanted))
    else:
        torch.testing.assert_close(ours, wanted, rtol=2**-7, atol=1e-6)
