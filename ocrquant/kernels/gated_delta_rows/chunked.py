"""The gated delta rule over one long part of a prompt, 64 rows at a time, by flash-linear-attention.

`gated_delta_rows` reads a state once and walks its rows one after another; chunks make matrix products of
them. The price: q and k are normalised to bf16, products take bf16 operands, and a result depends on where
chunks begin, so a prompt that is cut elsewhere gives other bits. For that reason, and because nobody has
measured the gain here, it runs only where ``OCRQUANT_LIBRARIES`` names ``fla``. One request a call: for
several, its kernels want every length on the host, and a step reads nothing back.

Read in fla-core 0.6.0, ``fla/ops/gated_delta_rule/chunk.py``: q, k [1, T, G, K] and v [1, T, H, V], value
head h reads key head h // (H / G); states fp32 [1, H, K, V]; ``use_gate_in_kernel`` computes -exp(a_log)
softplus(a + dt_bias) from raw `a`; ``use_qk_l2norm_in_kernel`` adds 1e-6 to the sum of squares; beta is taken
as it is, in bf16 as the definition rounds it. Loaded where it is called.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ocrquant.kernels.libraries import load, obstacle, require_asked

__all__ = ["CHUNK_ROWS", "chunk_obstacle", "gated_delta_rows_chunked"]

CHUNK_ROWS = 64
"""Rows of a chunk; fewer would be filled up to one."""
_MOST_KEYS = 256
"""Its kernels hold four tiles of 64 keys of a state at most."""


def chunk_obstacle(mixed: Tensor, state: Tensor, slots: Tensor, span: slice) -> str:
    """Why a call is not computed in chunks; empty where it is.

    Raises:
        DeviceError: ``OCRQUANT_LIBRARIES`` asks for a library that cannot be used.
    """
    if mixed.device.type != "cuda":
        return f"device {mixed.device}"
    require_asked()
    if found := obstacle("fla"):
        return found
    if len(slots) != 1:
        return f"{len(slots)} requests, whose lengths are on the device"
    if span.stop - span.start < CHUNK_ROWS:
        return f"{span.stop - span.start} rows, less than a chunk"
    if (mixed.dtype, state.dtype) != (torch.bfloat16, torch.float32):
        return f"rows in {mixed.dtype}, states in {state.dtype}"
    return "" if state.shape[-2] <= _MOST_KEYS else f"{state.shape[-2]} keys a head"


def gated_delta_rows_chunked(
    mixed: Tensor,
    a: Tensor,
    b: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    slots: Tensor,
    fresh: Tensor,
    out: Tensor,
    key_heads: int,
    span: slice,
) -> None:
    """See `gated_delta_rows_reference`; one request, whose rows are `span`. Nothing is read back.

    Args:
        mixed: [R, 2 G K + H V].
        a: [R, H].
        b: [R, H].
        a_log: float32 [H].
        dt_bias: float32 [H].
        state: float32 [slots, H, K, V], changed in place.
        slots: int32 [1].
        fresh: int32 [1].
        out: [R, H V]; the rows of the request are written.
        key_heads: G.
        span: Rows of the request; at least one.
    """
    library = load("fla", "fla.ops.gated_delta_rule")
    heads, key_dim, value_dim = state.shape[-3:]
    width = key_heads * key_dim
    q, k, v = mixed[span].split([width, width, heads * value_dim], dim=-1)
    q, k = (x.unflatten(-1, (key_heads, key_dim)).unsqueeze(0) for x in (q, k))
    # A slot below zero belongs to nobody: it reads the first one and writes that back as it was.
    is_nobody = (slots < 0).view(1, 1, 1, 1)
    place = slots.clamp(min=0).long()
    before = state.index_select(0, place)
    found, after = library.chunk_gated_delta_rule(
        q,
        k,
        v.unflatten(-1, (heads, value_dim)).unsqueeze(0),
        g=a[span].unsqueeze(0),
        beta=b[span].sigmoid().unsqueeze(0),
        scale=key_dim**-0.5,
        initial_state=before.masked_fill((fresh != 0).view(1, 1, 1, 1), 0.0),
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
        use_gate_in_kernel=True,
        A_log=a_log,
        dt_bias=dt_bias,
        chunk_size=CHUNK_ROWS,
    )
    state.index_copy_(0, place, torch.where(is_nobody, before, after))
    out[span] = found.masked_fill(is_nobody, 0.0).view(span.stop - span.start, heads * value_dim)
