"""The compiled functions against the plain ones, values and gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ocrquant.errors import ShapeError
from ocrquant.kernels import decoder_elementwise
from ocrquant.kernels.decoder_elementwise import reference, short_conv, unit_norm
from ocrquant.kernels.selection import choices
from tests.kernels.producing import ISAS, instruction_set, needs_native, threads

pytestmark = needs_native
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


Case = tuple[list[Tensor], tuple[object, ...]]


def f32(*shape: int) -> Tensor:
    return random(*shape, dtype=torch.float32)


# Sizes with and without whole turns of 32; one row, and more than one share of a weight's gradient.
CASES: dict[str, tuple[str, Callable[[], Case]]] = {
    "unit_norm": ("unit_norm", lambda: ([random(5, 7, 48), f32(48)], (1e-6,))),
    "unit_norm of many rows": ("unit_norm", lambda: ([random(1100, 64), f32(64)], (1e-6,))),
    "unit_norm of one row": ("unit_norm", lambda: ([random(1, 7), f32(7)], (1e-6,))),
    "swiglu": ("swiglu", lambda: ([random(3, 5, 33, scale=3.0), random(3, 5, 33)], ())),
    "swiglu of many": ("swiglu", lambda: ([random(9, 2000, scale=30.0), random(9, 2000)], ())),
    "short_conv": ("short_conv", lambda: ([random(2, 9, 96), f32(96, 4)], (1, 2, 16))),
    "short_conv of short": ("short_conv", lambda: ([random(67, 2, 92), f32(92, 4)], (2, 3, 8))),
    "short_conv of one token": ("short_conv", lambda: ([random(3, 1, 96), f32(96, 4)], (1, 1, 32))),
    "gated_norm": ("gated_norm", lambda: ([f32(2, 5, 3, 16), random(2, 5, 48), f32(16)], (1e-6,))),
    "gated_norm of many": ("gated_norm", lambda: ([f32(6, 90, 3, 64), random(6, 90, 192), f32(64)], (1e-6,))),
}


def results(name: str) -> list[Tensor]:
    torch.manual_seed(3)
    op, make = CASES[name]
    inputs, rest = make()
    return run(getattr(decoder_elementwise, op), inputs, *rest)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", CASES)
def test_equals_the_reference_in_values_and_gradients(name: str, isa: str) -> None:
    op = CASES[name][0]
    with instruction_set(isa):
        found = results(name)
    assert choices()[op].implementation == "native"
    torch.manual_seed(3)
    inputs, rest = CASES[name][1]()
    for got, wanted in zip(found, run(getattr(reference, op), inputs, *rest), strict=True):
        assert got.shape == wanted.shape
        assert got.dtype == wanted.dtype
        assert (got.float() - wanted.float()).abs().max() <= TOLERANCE * wanted.float().abs().max()


@pytest.mark.parametrize("name", CASES)
def test_bits_depend_neither_on_threads_nor_on_the_instruction_set(name: str) -> None:
    with threads(1), instruction_set("plain"):
        wanted = results(name)
    with threads(2):
        assert all(torch.equal(a, b) for a, b in zip(results(name), wanted, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_a_changed_input_changes_the_result(name: str) -> None:
    torch.manual_seed(3)
    op, make = CASES[name]
    inputs, rest = make()
    changed = [inputs[0].detach() * 1.5 + 0.25, *inputs[1:]]
    before, after = (run(getattr(decoder_elementwise, op), x, *rest) for x in (inputs, changed))
    assert max(float((y - x).abs().max() / x.abs().max()) for x, y in zip(before, after, strict=True)) > 0.1


@pytest.mark.parametrize("name", CASES)
def test_strided_gradients(name: str) -> None:
    torch.manual_seed(3)
    op, make = CASES[name]
    inputs, rest = make()
    outputs = getattr(decoder_elementwise, op)(*inputs, *rest)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    spread = [torch.randn(*o.shape, 2).to(o.dtype)[..., 0] for o in outputs]
    dense = torch.autograd.grad(outputs, inputs, [g.contiguous() for g in spread], retain_graph=True)
    for got, wanted in zip(torch.autograd.grad(outputs, inputs, spread), dense, strict=True):
        assert torch.equal(got, wanted)


def test_short_sequences_see_zeros_before_their_start() -> None:
    mixed = torch.ones(1, 2, 24, dtype=torch.bfloat16)
    kernel = torch.tensor([[1.0, 2.0, 4.0, 8.0]]).repeat(24, 1)
    _, _, value = short_conv(mixed, kernel, 1, 1, 8)
    expected = torch.nn.functional.silu(torch.tensor([8.0, 12.0]))
    assert torch.allclose(value[0, :, 0, 0], expected, rtol=1e-6)


def test_strided_inputs() -> None:
    torch.manual_seed(3)
    x, weight = random(4, 6, 96), f32(48)
    whole = run(unit_norm, [x[..., 48:], weight], 1e-6)
    part = unit_norm(x[..., 48:], weight, 1e-6)
    assert torch.equal(part, whole[0])


def test_what_is_not_compiled_runs_the_reference() -> None:
    torch.manual_seed(3)
    mixed, kernel = random(2, 5, 24), f32(24, 3)
    assert torch.equal(short_conv(mixed, kernel, 1, 1, 8)[2], reference.short_conv(mixed, kernel, 1, 1, 8)[2])
    x, weight = f32(3, 8), f32(8)
    assert torch.equal(unit_norm(x, weight, 1e-6), reference.unit_norm(x, weight, 1e-6))
    assert choices()["unit_norm"].implementation == "reference"


def test_refuses_what_its_contract_excludes() -> None:
    with pytest.raises(ShapeError, match=r"op unit_norm: weight: .* w = 8, got \[7\]"):
        unit_norm(random(3, 8), f32(7), 1e-6)
    with pytest.raises(ShapeError, match=r"op swiglu: up: expected \[3, 8\], got \[3, 9\]"):
        decoder_elementwise.swiglu(random(3, 8), random(3, 9))
    with pytest.raises(ShapeError, match=r"op short_conv: mixed: expected q and k of 1 x 12, then v, got 24"):
        short_conv(random(2, 5, 24), f32(24, 4), 1, 1, 12)
    with pytest.raises(ShapeError, match=r"op gated_norm: z: expected 48 elements, got 32"):
        decoder_elementwise.gated_norm(f32(1, 1, 3, 16), random(1, 1, 32), f32(16), 1e-6)
