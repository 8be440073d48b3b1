"""Where the cases run, and how their results are compared."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

from ocrquant.kernels.emit import emit
from ocrquant.kernels.operand import Operand, OperandSpec
from tests.kernels.producing import bf16_steps

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if IS_INTERPRETED else "cuda")
BF16, F32 = torch.bfloat16, torch.float32
FORMS = ("plain", "fp8", "fp8_scale", "nvfp4", "nvfp4_scale", "nvfp4_swizzled")
ENCODE_SCALE = torch.tensor([37.0], device=DEVICE)
# exp of a GPU is an approximation: about one float32 rounding in 2**16 moves a bf16 one.
MOST_FLIPS_ON_GPU = 1e-3

only_interpreted = pytest.mark.skipif(not IS_INTERPRETED, reason="a GPU's own arithmetic runs here")


def i32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def randn(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    """Normal bf16 numbers whose rows have very different sizes."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator) * scale
    sizes = 2.0 ** torch.randint(-3, 3, (shape[0], *[1] * (len(shape) - 1)), generator=generator)
    return (x * sizes).to(BF16).to(DEVICE)


def padded(x: Tensor) -> Tensor:
    """The same rows in wider ones that end in NaN; of three dimensions, the heads are apart too."""
    shape = list(x.shape)
    shape[1] += 1 if x.ndim > 2 else 7
    wide = torch.full(shape, torch.nan, dtype=x.dtype, device=x.device)
    view = wide[:, : x.shape[1]]
    view.copy_(x)
    return view


SPECS = {
    "by token": OperandSpec(plain=True, fp8=True, nvfp4_encode_scale=ENCODE_SCALE),
    "calibrated": OperandSpec(
        plain=True, fp8=True, fp8_decode_scale=torch.tensor([0.01], device=DEVICE), swizzles=False
    ),
    "swizzled": OperandSpec(plain=True, nvfp4_encode_scale=ENCODE_SCALE, swizzles=True),
}
every_spec = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())


def poisoned(spec: OperandSpec, rows: int, width: int) -> Operand:
    """An operand whose bytes are all 0xFF, so that what is not written shows."""
    out = spec.allocate(rows, width, BF16, DEVICE)
    for name in FORMS:
        tensor = getattr(out, name)
        if tensor is not None and tensor.numel():
            tensor.view(torch.uint8).fill_(0xFF)
    return out


def raw(x: Tensor) -> Tensor:
    return x.contiguous().view(torch.uint8)


def assert_forms(out: Operand, expected: Operand) -> None:
    """Bit equality of every form; on a GPU the plain form may differ by a step, and the others follow it."""
    assert out.plain is not None
    assert expected.plain is not None
    if not IS_INTERPRETED:
        steps = bf16_steps(out.plain.cpu(), expected.plain.cpu())
        assert int(steps.max()) <= 1 if steps.numel() else True
        assert int((steps > 0).sum()) <= max(1, MOST_FLIPS_ON_GPU * steps.numel())
        emit(out.plain.clone(), expected)
    for name in FORMS:
        a, b = getattr(out, name), getattr(expected, name)
        assert (a is None) == (b is None)
        if a is not None:
            assert torch.equal(raw(a), raw(b)), name
