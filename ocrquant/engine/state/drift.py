"""How far states and outputs wander from exact arithmetic over a long answer: plain states and records.

Over 4,096 tokens, four heads of 64, windows of 16, history 32 (AVX2, 2026-11-30): error of the state 4.9e-7
plain, 3.9e-7 with records in fp32, 2.8e-3 with records in bf16, which also change 36 % of the bf16 outputs; a
history of 64 and single rows give the same to a tenth. So records are fp32 unless somebody wants less memory.

One layer, one request, random rows; the exact run is the definition in fp64 on the same bf16 rows. Knows the
pools; knows no model.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ocrquant.engine.state.base import StatePool
from ocrquant.engine.state.native import NativePool
from ocrquant.engine.state.replay import ReplayPool
from ocrquant.kernels.causal_conv import causal_conv
from ocrquant.kernels.gated_delta_rows.reference import delta_terms, recurrence_step
from ocrquant.models.spec import StateSpec
from ocrquant.models.step import Classes, DeltaInputs, Rows, StateMetadata

__all__ = ["Drift", "measure_drift"]


@dataclass(frozen=True, slots=True)
class Drift:
    """What one way of keeping states does over a run.

    Attributes:
        form: ``plain``, or ``replay`` with the dtype of records.
        num_tokens: Length of the run.
        flushes: Folds inside steps; a run without any says nothing about records.
        state_error: Largest norm of a head's error over the norm of its exact state, at the end.
        output_error: Root mean square of the error of outputs over that of the exact outputs.
        outputs_changed: Share of bf16 outputs that are not the rounded exact ones.
    """

    form: str
    num_tokens: int
    flushes: int
    state_error: float
    output_error: float
    outputs_changed: float


@dataclass(frozen=True, slots=True)
class _Run:
    inputs: DeltaInputs
    exact_out: Tensor  # fp64 [tokens, H V]
    exact_state: Tensor  # fp64 [H, K, V]


def _numbers(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def _make_run(spec: StateSpec, num_tokens: int, seed: int) -> _Run:
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).bfloat16()

    # Half-lives from two to some two thousand tokens over the heads: errors add up longest where little is
    # forgotten.
    a_log = torch.linspace(-8, -1, spec.value_heads)
    inputs = DeltaInputs(
        random(num_tokens, spec.conv_channels),
        random(num_tokens, spec.value_heads),
        random(num_tokens, spec.value_heads),
        random(spec.conv_channels, spec.conv_taps),
        a_log,
        torch.zeros(spec.value_heads),
        spec.key_heads,
        spec.value_heads,
        spec.key_dim,
        spec.value_dim,
    )
    mixed = torch.empty_like(inputs.mixed)
    tail = torch.zeros(1, spec.conv_taps - 1, spec.conv_channels, dtype=mixed.dtype)
    zero = _numbers(0)
    causal_conv(inputs.mixed, inputs.conv_weight, tail, _numbers(0, num_tokens), zero, zero, mixed)
    state = torch.zeros(spec.value_heads, spec.key_dim, spec.value_dim, dtype=torch.float64)
    terms = delta_terms(mixed, inputs.a, inputs.b, inputs.a_log, inputs.dt_bias, state, spec.key_heads)
    rows = [recurrence_step(state, terms, row)[0].flatten() for row in range(num_tokens)]
    return _Run(inputs, torch.stack(rows), state)


def _one_class(name: str, count: int) -> StateMetadata:
    nothing, everything = Rows(slice(0, 0), slice(0, 0)), Rows(slice(0, count), slice(0, 1))
    after = Rows(slice(count, count), slice(1, 1))
    classes = Classes(
        everything if name == "drafted" else nothing,
        everything if name == "decode" else after if name == "drafted" else nothing,
        everything if name == "prefill" else after,
    )
    return StateMetadata(_numbers(0, count), _numbers(0), _numbers(0), classes)


def _rows(inputs: DeltaInputs, first: int, count: int) -> DeltaInputs:
    rows = slice(first, first + count)
    constants = (inputs.conv_weight, inputs.a_log, inputs.dt_bias)
    sizes = (inputs.key_heads, inputs.value_heads, inputs.key_dim, inputs.value_dim)
    return DeltaInputs(inputs.mixed[rows], inputs.a[rows], inputs.b[rows], *constants, *sizes)


def _measure(form: str, pool: StatePool, run: _Run, seed: int) -> Drift:
    num_tokens, window = len(run.inputs.mixed), pool.window
    generator = torch.Generator().manual_seed(seed)
    out = torch.empty(run.exact_out.shape, dtype=torch.bfloat16)
    done = 0
    while done < num_tokens:
        is_drafted = window > 1 and done + window <= num_tokens
        count = window if is_drafted else 1
        meta = _one_class("drafted" if is_drafted else "decode", count)
        if is_drafted:
            pool.begin_window([0], count)
        pool.advance(0, _rows(run.inputs, done, count), meta, out[done : done + count])
        if is_drafted:
            count = int(torch.randint(1, window + 1, (), generator=generator))
            pool.commit([0], [count])
        done += count
    kept = pool.snapshot(0, folded=True) if isinstance(pool, ReplayPool) else pool.snapshot(0)
    state = kept.tensors["state"][0].double()
    error = (state - run.exact_state).flatten(1).norm(dim=1) / run.exact_state.flatten(1).norm(dim=1)
    return Drift(
        form=form,
        num_tokens=num_tokens,
        flushes=pool.flush_count if isinstance(pool, ReplayPool) else 0,
        state_error=float(error.max()),
        output_error=float((out.double() - run.exact_out).norm() / run.exact_out.norm()),
        outputs_changed=float((out != run.exact_out.bfloat16()).double().mean()),
    )


def measure_drift(
    num_tokens: int = 4096,
    *,
    window: int = 16,
    history: int | None = None,
    spec: StateSpec | None = None,
    seed: int = 0,
) -> list[Drift]:
    """Runs one long answer token by token, and in windows with random acceptance, against fp64.

    Args:
        num_tokens: Its length.
        window: Rows of a window; 1 to 16 of them are accepted at random. 1: no windows.
        history: Records that a slot holds; None for the pool's own choice.
        spec: Sizes of the layer; None for four heads of 64.
        seed: Of rows and acceptance.

    Returns:
        Plain states, records in fp32, records in bf16.
    """
    if spec is None:
        spec = StateSpec(num_layers=1, key_heads=2, value_heads=4, key_dim=64, value_dim=64, conv_taps=4)
    run = _make_run(spec, num_tokens, seed)
    pools: dict[str, StatePool] = {"plain fp32": NativePool(spec, num_slots=1, max_rows=window)}
    for dtype, name in ((torch.float32, "replay fp32"), (torch.bfloat16, "replay bf16")):
        pools[name] = ReplayPool(
            spec, num_slots=1, max_rows=window, window=window, history=history, record_dtype=dtype
        )
    return [_measure(name, pool, run, seed) for name, pool in pools.items()]
