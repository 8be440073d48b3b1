"""The casts that kernels use, over all of their inputs, against torch and formats.

In the interpreter these are the repaired ones of `triton_common.interpreter`; on a GPU the hardware's.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from ocrquant.formats import fp8, nvfp4
from ocrquant.formats.reference import E2M1_GRID, E4M3_GRID, nearest_code
from ocrquant.kernels.triton_common.launch import has_e2m1_conversion
from ocrquant.kernels.triton_common.numerics import e2m1_codes, e2m1_pairs, e4m3_codes, rounded
from tests.kernels.triton.cases.making import BF16, DEVICE, only_interpreted

BLOCK = 4096


@triton.jit
def round_kernel(x, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < count, other=0.0)
    tl.store(out + at, rounded(value), mask=at < count)


@triton.jit
def widen_kernel(x, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < count, other=0.0).to(tl.float32), mask=at < count)


@triton.jit
def e4m3_kernel(x, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, e4m3_codes(tl.load(x + at, mask=at < count, other=0.0)), mask=at < count)


@triton.jit
def e4m3_value_kernel(codes, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    code = tl.load(codes + at, mask=at < count, other=0)
    tl.store(out + at, code.to(tl.float8e4nv, bitcast=True).to(tl.float32), mask=at < count)


@triton.jit
def e2m1_kernel(x, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, e2m1_codes(tl.load(x + at, mask=at < count, other=0.0)).to(tl.uint8), mask=at < count)


@triton.jit
def pairs_kernel(x, out, count, BLOCK: tl.constexpr, CONVERTS: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    low = tl.load(x + 2 * at, mask=2 * at < count, other=0.0)
    high = tl.load(x + 2 * at + 1, mask=2 * at + 1 < count, other=0.0)
    tl.store(out + at, e2m1_pairs(low, high, CONVERTS), mask=2 * at < count)


def run(kernel, x: Tensor, dtype: torch.dtype, **constants) -> Tensor:
    x = x.to(DEVICE)
    out = torch.empty(len(x), dtype=dtype, device=DEVICE)
    kernel[(triton.cdiv(len(x), BLOCK),)](x, out, len(x), BLOCK=BLOCK, **constants)
    return out.cpu()


def all_bf16() -> Tensor:
    return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(BF16)


def around_bf16() -> Tensor:
    """Every bf16 number, the midpoint above it and its two neighbours in float32."""
    base = all_bf16().float().view(torch.int32)
    return torch.cat([base + step for step in (0, 0x7FFF, 0x8000, 0x8001)]).view(torch.float32)


def midpoints(grid: tuple[float, ...]) -> list[float]:
    """Grid points, the ties between them, the float32 neighbours of the ties, and what lies beyond."""
    ties = [(a + b) / 2 for a, b in pairwise(grid)]
    near = [float(np.nextafter(np.float32(t), np.float32(side))) for t in ties for side in (0, 1e9)]
    beyond = [grid[-1] * 1.01, grid[-1] * 1.04, grid[-1] * 2, 1e30, float("inf"), 1e-30, 1e-45]
    return [*grid, *ties, *near, *beyond]


def same_or_both_nan(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(
        a.nan_to_num(nan=0).view(torch.int32), b.nan_to_num(nan=0).view(torch.int32)
    )


def test_all_bf16_numbers_are_read_as_they_are():
    assert same_or_both_nan(run(widen_kernel, all_bf16(), torch.float32), all_bf16().float())


def test_bf16_rounds_to_nearest_around_every_number():
    x = around_bf16()
    assert len(x) == 4 * 65536
    assert same_or_both_nan(run(round_kernel, x, torch.float32), x.to(BF16).float())


@pytest.mark.parametrize("sign", [1, -1])
def test_e4m3_codes_at_every_code_and_tie(sign):
    values = midpoints(E4M3_GRID)
    wanted = [nearest_code(v, E4M3_GRID) | (0x80 if sign < 0 else 0) for v in values]
    assert run(e4m3_kernel, sign * torch.tensor(values), torch.uint8).tolist() == wanted


def test_e4m3_codes_of_all_bf16_numbers_are_those_of_formats():
    x = all_bf16().float()
    wanted = fp8.encode(x.view(1, -1), torch.ones(1)).view(torch.uint8).view(-1)
    codes = run(e4m3_kernel, x, torch.uint8)
    assert torch.equal(codes[~x.isnan()], wanted[~x.isnan()])
    assert set(codes[x.isnan()].tolist()) <= {0x7F, 0xFF}


def test_e4m3_values_of_all_codes():
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    wanted = codes.view(torch.float8_e4m3fn).float()
    assert same_or_both_nan(run(e4m3_value_kernel, codes, torch.float32), wanted)


@pytest.mark.parametrize("sign", [1, -1])
def test_e2m1_codes_at_every_code_and_tie(sign):
    values = midpoints(E2M1_GRID)
    wanted = [nearest_code(v, E2M1_GRID) | (8 if sign < 0 else 0) for v in values]
    assert run(e2m1_kernel, sign * torch.tensor(values), torch.uint8).tolist() == wanted


def test_e2m1_pairs_of_all_bf16_numbers_are_those_of_formats():
    x = all_bf16().float()
    one = torch.ones(1)
    wanted = nvfp4.pack(nvfp4.encode(x, torch.ones(len(x) // 16), one))
    half = torch.empty(len(x) // 2, dtype=torch.uint8, device=DEVICE)
    converts = has_e2m1_conversion(DEVICE)
    grid = (triton.cdiv(len(half), BLOCK),)
    pairs_kernel[grid](x.to(DEVICE), half, len(x), BLOCK=BLOCK, CONVERTS=converts)
    assert torch.equal(half.cpu(), wanted)


@only_interpreted
def test_what_the_interpreter_did_before():
    """The faults are still there underneath: with a Triton that converts rightly, the repair can go."""
    from triton.runtime import interpreter

    original = interpreter._convert_float.__closure__
    found = [
        c.cell_contents for c in original if getattr(c.cell_contents, "__name__", "") == "_convert_float"
    ]
    values = np.array([447.0, 1.07, 500.0, 0.001], dtype=np.float32)
    bf16 = (found[0](values, tl.float32, tl.bfloat16, None).astype(np.uint32) << 16).view(np.float32)
    assert bf16.tolist()[:2] == [446.0, 1.0625]
    codes = found[0](values, tl.float32, tl.float8e4nv, interpreter._ir.ROUNDING_MODE.RTNE)
    assert E4M3_GRID[codes[2]] == 256.0
    assert codes[3] == 0
