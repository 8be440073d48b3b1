"""When the rule is computed in chunks, and what is passed; its kernels are tested beside those in Triton."""

import sys
import types

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ocrquant.engine.state import NativePool, ReplayPool
from ocrquant.errors import DeviceError
from ocrquant.kernels import gated_delta_rows as op
from ocrquant.kernels import libraries
from ocrquant.kernels.gated_delta_rows.chunked import chunk_obstacle, gated_delta_rows_chunked
from ocrquant.kernels.gated_delta_rows.reference import _normalise, delta_terms, recurrence_step
from ocrquant.models.spec import StateSpec
from ocrquant.models.step import Classes, DeltaInputs, Rows, StateMetadata
from tests.kernels.delta_making import GROUPS, HEADS, i32, rows


@pytest.fixture
def asked(monkeypatch):
    monkeypatch.setenv("OCRQUANT_LIBRARIES", "fla")
    monkeypatch.setattr(libraries, "unusable", lambda name: "")


def said(count=64, requests=1, dtype=torch.bfloat16, wide=torch.float32, keys=128, device="cuda"):
    with FakeTensorMode():
        mixed = torch.empty(count, 8, dtype=dtype, device=device)
        state = torch.empty(4, 2, keys, 8, dtype=wide, device=device)
        slots = torch.empty(requests, dtype=torch.int32, device=device)
        return chunk_obstacle(mixed, state, slots, slice(0, count))


def test_a_long_part_of_one_prompt_on_a_gpu_where_it_is_asked_for(asked, monkeypatch):
    assert said() == ""
    assert said(device="cpu") == "device cpu"
    assert said(count=63) == "63 rows, less than a chunk"
    assert said(requests=2) == "2 requests, whose lengths are on the device"
    assert said(dtype=torch.float32) == "rows in torch.float32, states in torch.float32"
    assert said(wide=torch.float64) == "rows in torch.bfloat16, states in torch.float64"
    assert said(keys=512) == "512 keys a head"
    monkeypatch.setenv("OCRQUANT_LIBRARIES", "flashinfer")
    assert said() == "OCRQUANT_LIBRARIES does not name fla"


def test_another_version_is_refused_rather_than_passed_over(monkeypatch):
    monkeypatch.setenv("OCRQUANT_LIBRARIES", "fla")
    monkeypatch.setattr(libraries, "unusable", lambda name: "fla-core 0.4.1 is not >=0.6,<0.7")
    with pytest.raises(DeviceError, match=r"OCRQUANT_LIBRARIES=fla: expected fla-core>=0.6,<0.7"):
        said()


def rule(q, k, v, g, beta, **named):
    """fla's function as its documentation says, in float64."""
    assert (
        named["use_qk_l2norm_in_kernel"] is named["use_gate_in_kernel"] is named["output_final_state"] is True
    )
    assert q.shape == k.shape
    assert len(q) == len(k) == len(v) == len(g) == len(beta) == 1
    heads = v.shape[2] // k.shape[2]
    q, k = (_normalise(x[0].double()).repeat_interleave(heads, 1) for x in (q, k))
    gate = -named["A_log"].double().exp() * torch.nn.functional.softplus(
        g[0].double() + named["dt_bias"].double()
    )
    state, outs = named["initial_state"][0].double(), []
    for row in range(q.shape[0]):
        state = state * gate[row].exp()[:, None, None]
        read = (state * k[row].unsqueeze(-1)).sum(-2)
        written = (v[0, row].double() - read) * beta[0, row].double().unsqueeze(-1)
        state = state + k[row].unsqueeze(-1) * written.unsqueeze(-2)
        outs.append((state * (q[row] * named["scale"]).unsqueeze(-1)).sum(-2))
    return torch.stack(outs)[None].to(v.dtype), state[None].float()


def put_standin(monkeypatch):
    """fla's function in its place."""
    made = types.ModuleType("fla.ops.gated_delta_rule")
    made.chunk_gated_delta_rule = rule
    for name in ("fla", "fla.ops"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "fla.ops.gated_delta_rule", made)


@pytest.fixture
def standin(monkeypatch):
    put_standin(monkeypatch)


@pytest.mark.parametrize("fresh", [0, 1])
def test_what_is_passed_gives_the_rule(standin, fresh):
    inputs, span = rows(75, 32, 16), slice(2, 72)
    states = [torch.randn(4, HEADS, 32, 16, generator=torch.Generator().manual_seed(1)) for _ in range(2)]
    outs = [torch.full((75, HEADS * 16), 7.0, dtype=torch.bfloat16) for _ in range(2)]
    gated_delta_rows_chunked(*inputs, states[0], i32(3), i32(fresh), outs[0], GROUPS, span)
    terms = delta_terms(*inputs, states[1], GROUPS)
    if fresh:
        states[1][3] = 0
    for row in range(span.start, span.stop):
        outs[1][row] = recurrence_step(states[1][3], terms, row)[0].flatten().to(torch.bfloat16)
    torch.testing.assert_close(outs[0], outs[1], rtol=2**-7, atol=1e-4)
    torch.testing.assert_close(states[0], states[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pool", [NativePool, ReplayPool])
def test_pools_say_where_the_rows_of_a_prompt_lie(monkeypatch, pool):
    """A part of a prompt behind a decoded row: the pool that keeps both apart says so, the other says all."""
    spec = StateSpec(num_layers=1, key_heads=1, value_heads=2, key_dim=16, value_dim=16, conv_taps=4)
    states = pool(spec, num_slots=3, max_rows=80, device="cpu")
    spans = []
    monkeypatch.setattr(op, "chunk_obstacle", lambda *arguments: spans.append(arguments[-1]) or "not now")
    count = 71
    classes = Classes(
        Rows(slice(0, 0), slice(0, 0)), Rows(slice(0, 1), slice(0, 1)), Rows(slice(1, count), slice(1, 2))
    )
    meta = StateMetadata(i32(0, 1, count), i32(1, 2), i32(1, 1), classes)
    mixed = torch.randn(count, spec.conv_channels).bfloat16()
    a, b = torch.randn(2, count, 2).bfloat16()
    weight = torch.randn(spec.conv_channels, 4).bfloat16()
    inputs = DeltaInputs(mixed, a, b, weight, torch.zeros(2), torch.zeros(2), 1, 2, 16, 16)
    states.advance(0, inputs, meta, torch.empty(count, 32, dtype=torch.bfloat16))
    assert spans == [slice(1, count) if pool is ReplayPool else slice(0, count)]
