"""What the kernels of the gated delta rule compute of a row, as Triton device functions.

The formulas are those of ``gated_delta_rows.reference.delta_terms``. Knows q, k, v, gates and rings; knows no
request.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ocrquant.kernels.gated_delta_rows import reference
from ocrquant.kernels.triton_common.numerics import reciprocal_root, rounded, sigmoid, softplus

__all__ = [
    "PRECISION",
    "gates",
    "inverse_length",
    "log_gate_sum",
    "normalised",
    "record_keys",
    "record_values",
    "ring_places",
]

EPSILON = tl.constexpr(reference.EPSILON)
PRECISION = tl.constexpr("tf32x3")
"""Of matrix products of float32: three products of tensor cores keep about 22 bits; one keeps 11, and states
drift."""


@triton.jit
def inverse_length(x):
    """What rows [..., K] are normalised by, [..., 1]."""
    return reciprocal_root(tl.sum(x * x, axis=-1, keep_dims=True) + EPSILON)


@triton.jit
def normalised(x):
    """Rows [..., K] over their lengths."""
    return x * inverse_length(x)


@triton.jit
def gates(a, b, a_log, dt_bias):
    """How much of a new value is written, and the log of what is kept of the state."""
    return rounded(sigmoid(b)), -tl.exp(a_log) * softplus(a + dt_bias)


@triton.jit
def ring_places(base, first, COUNT: tl.constexpr, RING: tl.constexpr):
    """Where records first .. first + COUNT lie in a ring."""
    return (base + first + tl.arange(0, COUNT)) & (RING - 1)


@triton.jit
def record_keys(ring, base, first, held, key, RING: tl.constexpr, COUNT: tl.constexpr, K: tl.constexpr):
    """Keys of records [COUNT, some of K], zeros from `held` on; arguments as in `record_values`."""
    is_held = first + tl.arange(0, COUNT) < held
    place = ring_places(base, first, COUNT, RING)
    keys = tl.load(ring[1] + place[:, None] * K + key[None, :], mask=is_held[:, None], other=0.0)
    return keys.to(tl.float32)


@triton.jit
def record_values(
    ring,
    base,
    first,
    held,
    passed,
    total,
    value,
    RING: tl.constexpr,
    COUNT: tl.constexpr,
    V: tl.constexpr,
):
    """Values of records times what is left of them behind the last one, zeros from `held` on.

    Args:
        ring: Where the values, keys and log gates of a head lie.
        base: Place of record 0.
        first: The first record that is wanted.
        held: How many there are.
        passed: Sum of the log gates of those before the first.
        total: Of all.
        value: Columns of the values.
        RING: Records that the ring has room for.
        COUNT: How many are wanted.
        V: Width of a value.

    Returns:
        [COUNT, columns], and the sum of the log gates up to the last one wanted.
    """
    is_held = first + tl.arange(0, COUNT) < held
    place = ring_places(base, first, COUNT, RING)
    gate = tl.load(ring[2] + place, mask=is_held, other=0.0)
    values = tl.load(ring[0] + place[:, None] * V + value[None, :], mask=is_held[:, None], other=0.0)
    left = tl.exp(total - (passed + tl.cumsum(gate, axis=0)))
    return values.to(tl.float32) * left[:, None], passed + tl.sum(gate, axis=0)


@triton.jit
def log_gate_sum(ring, base, held, RING: tl.constexpr):
    """Sum of the log gates of all records."""
    record = tl.arange(0, RING)
    place = ring_places(base, 0, RING, RING)
    return tl.sum(tl.load(ring[2] + place, mask=record < held, other=0.0), axis=0)
