"""Requests with random rows, steps made of them, and what the recurrence alone makes of each request."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from ocrquant.engine.state import StatePool
from ocrquant.kernels.causal_conv.reference import causal_conv_reference
from ocrquant.kernels.gated_delta_rows.reference import delta_terms, recurrence_step
from ocrquant.models.spec import StateSpec
from ocrquant.models.step import Classes, DeltaInputs, Rows, StateMetadata

SPEC = StateSpec(num_layers=2, key_heads=2, value_heads=4, key_dim=16, value_dim=16, conv_taps=4)


def i32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


@dataclass
class Layer:
    """Constants of a layer and the rows of every request, [tokens, ...] each."""

    conv_weight: Tensor
    a_log: Tensor
    dt_bias: Tensor
    mixed: list[Tensor] = field(default_factory=list)
    a: list[Tensor] = field(default_factory=list)
    b: list[Tensor] = field(default_factory=list)


def make_layers(
    requests: int, tokens: int, dtype: torch.dtype, spec: StateSpec = SPEC, seed: int = 0
) -> list[Layer]:
    torch.manual_seed(seed)
    wide = {"dtype": torch.float64 if dtype == torch.float64 else torch.float32}
    layers = []
    for _ in range(spec.num_layers):
        a_log = torch.rand(spec.value_heads, **wide) * 4 - 4
        layer = Layer(
            torch.randn(spec.conv_channels, 4).to(dtype), a_log, torch.randn(spec.value_heads, **wide)
        )
        for _ in range(requests):
            layer.mixed.append(torch.randn(tokens, spec.conv_channels).to(dtype))
            layer.a.append(torch.randn(tokens, spec.value_heads).to(dtype))
            layer.b.append(torch.randn(tokens, spec.value_heads).to(dtype))
        layers.append(layer)
    return layers


def alone(layer: Layer, request: int, spec: StateSpec = SPEC) -> tuple[Tensor, Tensor]:
    """Outputs [tokens, H V] and states [tokens, H, K, V] of one request, by the definition in fp64."""
    mixed = layer.mixed[request]
    tokens, out = len(mixed), torch.empty_like(mixed)
    tail = torch.zeros(1, 3, spec.conv_channels, dtype=mixed.dtype)
    causal_conv_reference(mixed, layer.conv_weight, tail, i32(0, tokens), i32(0), i32(1), out)
    state = torch.zeros(spec.value_heads, spec.key_dim, spec.value_dim, dtype=torch.float64)
    terms = delta_terms(
        out, layer.a[request], layer.b[request], layer.a_log, layer.dt_bias, state, spec.key_heads
    )
    outputs, states = [], []
    for row in range(tokens):
        outputs.append(recurrence_step(state, terms, row)[0].flatten())
        states.append(state.clone())
    return torch.stack(outputs), torch.stack(states)


@dataclass
class Part:
    """Some rows of one request in a step."""

    request: int
    slot: int
    start: int
    count: int

    @property
    def tokens(self) -> slice:
        return slice(self.start, self.start + self.count)


def step(
    pool: StatePool,
    layers: list[Layer],
    drafted: list[Part] = (),  # type: ignore[assignment]
    decode: list[Part] = (),  # type: ignore[assignment]
    prefill: list[Part] = (),  # type: ignore[assignment]
) -> list[list[Tensor]]:
    """Advances all layers; outputs by part and layer. Windows stay open."""
    parts = [*drafted, *decode, *prefill]
    if drafted:
        pool.begin_window([p.slot for p in drafted], max(p.count for p in drafted))
    starts = [0]
    for part in parts:
        starts.append(starts[-1] + part.count)
    meta = metadata(parts, starts, len(drafted), len(decode))
    found: list[list[Tensor]] = [[] for _ in parts]
    for number, layer in enumerate(layers):
        out = torch.full((starts[-1], pool.spec.value_heads * pool.spec.value_dim), 7.0).to(
            layer.mixed[0].dtype
        )
        pool.advance(number, inputs_of(pool.spec, layer, parts), meta, out)
        for part, rows in enumerate(pairwise(starts)):
            found[part].append(out[slice(*rows)])
    return found


def inputs_of(spec: StateSpec, layer: Layer, parts: list[Part]) -> DeltaInputs:
    def rows(source: list[Tensor]) -> Tensor:
        return torch.cat([source[p.request][p.tokens] for p in parts])

    sizes = (spec.key_heads, spec.value_heads, spec.key_dim, spec.value_dim)
    constants = (layer.conv_weight, layer.a_log, layer.dt_bias)
    return DeltaInputs(rows(layer.mixed), rows(layer.a), rows(layer.b), *constants, *sizes)


def metadata(parts: list[Part], starts: list[int], drafted: int, decode: int) -> StateMetadata:
    ends = (0, drafted, drafted + decode, len(parts))
    classes = Classes(*(Rows(slice(starts[a], starts[b]), slice(a, b)) for a, b in pairwise(ends)))
    fresh = i32(*(int(p.start == 0) for p in parts))
    return StateMetadata(i32(*starts), i32(*(p.slot for p in parts)), fresh, classes)
