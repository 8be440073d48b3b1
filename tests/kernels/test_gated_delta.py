"""The compiled rule and the chunked one against the step-by-step definition in fp64, values and gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ocrquant.kernels.gated_delta import cpu, gated_delta_rule
from ocrquant.kernels.gated_delta.reference import chunked_gated_delta_rule, recurrent_gated_delta_rule
from ocrquant.kernels.library import load


def inputs(
    length: int, *, batch: int = 2, key_heads: int = 2, value_heads: int = 4, dim: int = 32
) -> list[Tensor]:
    torch.manual_seed(length)
    q, k = (torch.nn.functional.normalize(torch.randn(batch, length, key_heads, dim), dim=-1) for _ in "qk")
    v = torch.randn(batch, length, value_heads, dim)
    return [q, k, v, -torch.rand(batch, length, value_heads), torch.rand(batch, length, value_heads)]


def run(rule: Callable[..., Tensor], tensors: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    fresh = [x.detach().to(dtype, copy=True).requires_grad_() for x in tensors]
    out = rule(*fresh)
    torch.manual_seed(1)
    (out * torch.randn(out.shape).to(dtype)).sum().backward()
    return [out.detach(), *(x.grad for x in fresh)]


@pytest.mark.parametrize("length", [1, 31, 32, 75])
@pytest.mark.parametrize("rule", [gated_delta_rule, chunked_gated_delta_rule])
def test_equals_the_definition(rule: Callable[..., Tensor], length: int) -> None:
    tensors = inputs(length)
    for got, wanted in zip(
        run(rule, tensors, torch.float32),
        run(recurrent_gated_delta_rule, tensors, torch.float64),
        strict=True,
    ):
        assert (got.double() - wanted).abs().max() < 2e-5


def test_the_compiled_kernel_is_what_runs() -> None:
    if load(cpu.NAME).handle is None:
        pytest.skip(f"no compiled library: {load(cpu.NAME).reason}")
    q, _, v, _, _ = inputs(3)
    assert cpu.supported(q, v)
    assert not cpu.supported(q.double(), v.double())
