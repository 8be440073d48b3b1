"""The compiled rule against the definition: outputs, states left behind, and carrying on."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ocrquant.errors import ShapeError
from ocrquant.kernels.gated_delta_state import gated_delta_state, supported
from ocrquant.kernels.gated_delta_state.reference import gated_delta_state_reference
from tests.kernels.producing import ISAS, instruction_set, needs_native, threads

pytestmark = needs_native

KEY_HEADS, HEADS = 2, 4


def inputs(batch: int, length: int, dim: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """mixed, log_gate, beta, state."""
    torch.manual_seed(100 * length + dim)
    return [
        torch.randn(batch, length, (2 * KEY_HEADS + HEADS) * dim).to(dtype),
        -torch.rand(batch, length, HEADS),
        torch.rand(batch, length, HEADS).to(dtype),
        torch.randn(batch, HEADS, dim, dim),
    ]


@pytest.mark.parametrize("dim", [32, 64, 128])
@pytest.mark.parametrize("length", [1, 17])
def test_fp32(dim: int, length: int) -> None:
    found, wanted = inputs(2, length, dim), inputs(2, length, dim)
    out = gated_delta_state(*found, KEY_HEADS)
    reference = gated_delta_state_reference(*wanted, KEY_HEADS)
    assert (out - reference).abs().max() < 2e-6
    assert (found[3] - wanted[3]).abs().max() < 2e-6
    assert not torch.equal(found[3], inputs(2, length, dim)[3])


def test_bf16_rounds_once() -> None:
    found, wanted = inputs(2, 9, 64, torch.bfloat16), inputs(2, 9, 64, torch.bfloat16)
    out = gated_delta_state(*found, KEY_HEADS)
    assert out.dtype == torch.bfloat16
    wide = gated_delta_state_reference(wanted[0].float(), *wanted[1:], KEY_HEADS)
    # Half a unit in the last place, and the fp32 error before it.
    assert ((out.float() - wide).abs() <= wide.abs() * 2.0**-8 + 1e-6).all()
    assert (found[3] - wanted[3]).abs().max() < 2e-6


def test_carrying_on_is_the_same_as_one_go() -> None:
    whole, parts = inputs(3, 12, 32), inputs(3, 12, 32)
    out = gated_delta_state(*whole, KEY_HEADS)
    pieces = [
        gated_delta_state(*(x[:, a:b] for x in parts[:3]), parts[3], KEY_HEADS) for a, b in ((0, 5), (5, 12))
    ]
    assert torch.equal(torch.cat(pieces, 1), out)
    assert torch.equal(parts[3], whole[3])


def test_two_tokens_by_hand() -> None:
    # One head of 32; k = e0 and q = 2 e0 normalise to e0, q then scaled by 32^-1/2; no decay, write half of
    # v.
    mixed, state = torch.zeros(1, 2, 96), torch.zeros(1, 1, 32, 32)
    mixed[0, :, 0], mixed[0, :, 32], mixed[0, :, 64] = 2.0, 1.0, 8.0
    out = gated_delta_state(mixed, torch.zeros(1, 2, 1), torch.full((1, 2, 1), 0.5), state, 1)
    assert state[0, 0, 0, 0] == pytest.approx(6.0, rel=1e-5)  # 4, then 4 + (8 - 4) / 2
    assert out[0, :, 0, 0].tolist() == pytest.approx([4 / 32**0.5, 6 / 32**0.5], rel=1e-5)
    assert out.abs().sum().item() == pytest.approx(10 / 32**0.5, rel=1e-5)


def test_zero_rows_leave_a_zero_state() -> None:
    state = torch.zeros(1, HEADS, 32, 32)
    mixed = torch.zeros(1, 5, 8 * 32)
    out = gated_delta_state(mixed, -torch.ones(1, 5, HEADS), torch.full((1, 5, HEADS), 0.5), state, KEY_HEADS)
    assert not out.any()
    assert not state.any()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_visible(value: float) -> None:
    arguments = inputs(1, 2, 32, torch.bfloat16)
    arguments[0][0, 0, -1] = value
    assert not torch.isfinite(gated_delta_state(*arguments, KEY_HEADS)).all()


@pytest.mark.parametrize("isa", ISAS)
def test_every_build(isa: str) -> None:
    found, wanted = inputs(2, 5, 64), inputs(2, 5, 64)
    with instruction_set(isa):
        out = gated_delta_state(*found, KEY_HEADS)
    assert (out - gated_delta_state_reference(*wanted, KEY_HEADS)).abs().max() < 2e-6
    assert (found[3] - wanted[3]).abs().max() < 2e-6


def test_bits_do_not_depend_on_threads_or_on_other_sequences() -> None:
    together, alone = inputs(3, 40, 64), inputs(3, 40, 64)
    with threads(2):
        out = gated_delta_state(*together, KEY_HEADS)
    for b in range(3):
        assert torch.equal(gated_delta_state(*(x[b : b + 1] for x in alone), KEY_HEADS), out[b : b + 1])
    assert torch.equal(together[3], alone[3])


def test_other_sizes_go_to_the_reference() -> None:
    cpu = torch.device("cpu")
    assert supported(cpu, torch.bfloat16, 64, 64)
    assert not supported(cpu, torch.float16, 64, 64)
    assert not supported(cpu, torch.float32, 40, 40)
    assert not supported(cpu, torch.float32, 32, 72)
    assert not supported(torch.device("cuda"), torch.float32, 64, 64)
    found, wanted = inputs(1, 3, 40), inputs(1, 3, 40)
    assert torch.equal(gated_delta_state(*found, KEY_HEADS), gated_delta_state_reference(*wanted, KEY_HEADS))


def test_the_variable_forces_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCRQUANT_KERNELS", "reference")
    assert not supported(torch.device("cpu"), torch.bfloat16, 64, 64)
    found, wanted = inputs(1, 3, 32), inputs(1, 3, 32)
    assert torch.equal(gated_delta_state(*found, KEY_HEADS), gated_delta_state_reference(*wanted, KEY_HEADS))


def test_state_must_be_contiguous() -> None:
    arguments = inputs(1, 2, 32)
    arguments[3] = arguments[3].transpose(2, 3)
    with pytest.raises(ShapeError, match="op gated_delta_state: state: expected a contiguous tensor"):
        gated_delta_state(*arguments, KEY_HEADS)
