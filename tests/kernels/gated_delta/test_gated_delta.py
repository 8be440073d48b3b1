"""The compiled rule and the chunked one against the step-by-step definition in fp64, values and gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ocrquant.errors import ShapeError
from ocrquant.kernels.gated_delta import gated_delta_rule
from ocrquant.kernels.gated_delta.reference import chunked_gated_delta_rule, recurrent_gated_delta_rule
from ocrquant.kernels.selection import choices
from tests.kernels.producing import ISAS, instruction_set, needs_native, threads


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


@needs_native
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("key_dim", "value_dim"), [(16, 16), (64, 64), (128, 128), (32, 80)])
def test_every_build_equals_the_definition(key_dim: int, value_dim: int, isa: str) -> None:
    q, k, _, *gates = inputs(9, dim=key_dim)
    tensors = [q, k, torch.randn(2, 9, 4, value_dim), *gates]
    with instruction_set(isa):
        found = run(gated_delta_rule, tensors, torch.float32)
    assert choices()["gated_delta"].implementation == "native"
    for got, wanted in zip(found, run(recurrent_gated_delta_rule, tensors, torch.float64), strict=True):
        assert (got.double() - wanted).abs().max() < 2e-5


@needs_native
def test_bits_do_not_depend_on_threads_or_on_other_sequences() -> None:
    tensors = inputs(40, batch=3, dim=64)
    with threads(1):
        alone = [run(gated_delta_rule, [x[b : b + 1] for x in tensors], torch.float32) for b in range(3)]
    with threads(2):
        out = gated_delta_rule(*tensors)
    assert torch.equal(out, torch.cat([x[0] for x in alone]))


def test_others_run_the_chunked_reference() -> None:
    for tensors in (inputs(5, dim=40), [x.double() for x in inputs(5)]):
        assert torch.equal(gated_delta_rule(*tensors), chunked_gated_delta_rule(*tensors))


def test_refuses_what_its_contract_excludes() -> None:
    q, k, v, log_gate, beta = inputs(3)
    with pytest.raises(ShapeError, match=r"op gated_delta: v: expected a multiple of 2 heads, got 3"):
        gated_delta_rule(q, k, v[:, :, :3], log_gate[..., :3], beta[..., :3])
    with pytest.raises(ShapeError, match=r"op gated_delta: beta: expected shape \[B, T, H\] with H = 4"):
        gated_delta_rule(q, k, v, log_gate, beta[..., :3])
