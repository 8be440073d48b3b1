"""The compiled functions against the plain ones, values and gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ocrquant.kernels.decoder_elementwise import cpu, reference
from ocrquant.kernels.library import load

pytestmark = pytest.mark.skipif(
    load(cpu.NAME).handle is None, reason=f"no compiled library: {load(cpu.NAME).reason}"
)
# One bf16 rounding of a result of that size; sums over rows (weight gradients) are fp32.
TOLERANCE = 2.0**-7


def random(*shape: int, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0) -> Tensor:
    return (torch.randn(*shape) * scale).to(dtype).requires_grad_()


def run(function: Callable[..., object], inputs: list[Tensor], *rest: object) -> list[Tensor]:
    fresh = [x.detach().clone().requires_grad_() for x in inputs]
    result = function(*fresh, *rest)
    outputs = list(result) if isinstance(result, tuple) else [result]
    torch.manual_seed(7)
    sum((o.float() * torch.randn(o.shape)).sum() for o in outputs).backward()
    return [*(o.detach() for o in outputs), *(x.grad for x in fresh)]


CASES = {
    "unit_norm": lambda: ([random(5, 7, 48), random(48, dtype=torch.float32)], (1e-6,)),
    "swiglu": lambda: ([random(3, 5, 33, scale=3.0), random(3, 5, 33)], ()),
    "short_conv": lambda: ([random(2, 9, 96), random(96, 4, dtype=torch.float32)], (1, 2, 16)),
    "gated_norm": lambda: (
        [random(2, 5, 3, 16, dtype=torch.float32), random(2, 5, 48), random(16, dtype=torch.float32)],
        (1e-6,),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_the_reference_in_values_and_gradients(name: str) -> None:
    torch.manual_seed(3)
    inputs, rest = CASES[name]()
    for got, wanted in zip(
        run(getattr(cpu, name), inputs, *rest), run(getattr(reference, name), inputs, *rest), strict=True
    ):
        assert got.shape == wanted.shape
        assert got.dtype == wanted.dtype
        assert (got.float() - wanted.float()).abs().max() <= TOLERANCE * wanted.float().abs().max()


@pytest.mark.parametrize("name", CASES)
def test_a_changed_input_changes_the_result(name: str) -> None:
    torch.manual_seed(3)
    inputs, rest = CASES[name]()
    before = run(getattr(cpu, name), inputs, *rest)[0]
    changed = [inputs[0].detach() * 1.5 + 0.25, *inputs[1:]]
    assert (run(getattr(cpu, name), changed, *rest)[0].float() - before.float()).abs().max() > 0.05


def test_short_sequences_see_zeros_before_their_start() -> None:
    mixed = torch.ones(1, 2, 24, dtype=torch.bfloat16)
    kernel = torch.tensor([[1.0, 2.0, 4.0, 8.0]]).repeat(24, 1)
    _, _, value = cpu.short_conv(mixed, kernel, 1, 1, 8)
    expected = torch.nn.functional.silu(torch.tensor([8.0, 12.0]))
    assert torch.allclose(value[0, :, 0, 0], expected, rtol=1e-6)
