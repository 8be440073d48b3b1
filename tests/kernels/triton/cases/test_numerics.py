"""Nonlinearities against float64, and how often their bf16 roundings differ from torch's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from ocrquant.kernels.triton_common.numerics import reciprocal_root, sigmoid, silu, softplus
from tests.kernels.triton.cases.making import BF16, DEVICE, IS_INTERPRETED

BLOCK = 4096
FUNCTIONS = {"silu": F.silu, "sigmoid": torch.sigmoid, "softplus": F.softplus, "reciprocal_root": torch.rsqrt}


@triton.jit
def apply_kernel(x, out, NAME: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at)
    if NAME == "silu":
        y = silu(value)
    elif NAME == "sigmoid":
        y = sigmoid(value)
    elif NAME == "softplus":
        y = softplus(value)
    else:
        y = reciprocal_root(value)
    tl.store(out + at, y)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_all_bf16_numbers(name):
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(BF16).float()
    out = torch.empty_like(x, device=DEVICE)
    apply_kernel[(len(x) // BLOCK,)](x.to(DEVICE), out, NAME=name, BLOCK=BLOCK)
    out, exact = out.cpu(), FUNCTIONS[name](x.double()).float()
    is_number = ~exact.isnan() & (x.abs() > 2.0**-100)
    torch.testing.assert_close(out[is_number], exact[is_number], rtol=1e-5, atol=1e-36)
    ours, torchs = out.to(BF16)[is_number], FUNCTIONS[name](x).to(BF16)[is_number]
    most = 0 if IS_INTERPRETED else 65  # of 65536
    assert int((ours != torchs).sum()) <= most
    assert bool(out[x.isnan()].isnan().all())
