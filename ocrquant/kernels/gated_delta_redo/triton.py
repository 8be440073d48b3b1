"""``record_window`` and ``redo_window`` in Triton."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ocrquant.kernels.gated_delta_rows.triton import MOST_VALUES, launch_rows
from ocrquant.kernels.triton_common.launch import launch, require_power


@triton.jit
def redo_window_kernel(
    state,
    records,
    slots,
    accepted,
    num_slots,
    window,
    H: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    VALUES: tl.constexpr,
):
    """Program (request, layer and head, columns of its state)."""
    request, layer, head = tl.program_id(0), tl.program_id(1) // H, tl.program_id(1) % H
    slot = tl.load(slots + request).to(tl.int64)
    if slot < 0:
        return
    count = tl.minimum(tl.load(accepted + request), window)
    if count <= 0:
        return
    key, value = tl.arange(0, K), tl.program_id(2) * VALUES + tl.arange(0, VALUES)
    here = layer.to(tl.int64) * num_slots + slot
    tile = state + (here * H + head) * (K * V) + key[:, None] * V + value[None, :]
    held = tl.load(tile)
    place = here * window * H + head
    for _ in range(count):
        k, u = tl.load(records[0] + place * K + key), tl.load(records[1] + place * V + value)
        held = held * tl.load(records[2] + place) + k[:, None] * u[None, :]
        place += H
    tl.store(tile, held)


def record_window_triton(
    mixed: Tensor,
    a: Tensor,
    b: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    records: tuple[Tensor, Tensor, Tensor],
    q_start: Tensor,
    slots: Tensor,
    out: Tensor,
    key_heads: int,
) -> None:
    """See `record_window_reference`; bf16 rows and fp32 states on a GPU, K and V powers of two.

    Raises:
        ShapeError: K or V is none.
    """
    rows, where = (mixed, a, b, a_log, dt_bias), (q_start, slots, None)
    launch_rows("record_window", rows, state, where, out, key_heads, records=records)


def redo_window_triton(
    state: Tensor, records: tuple[Tensor, Tensor, Tensor], slots: Tensor, accepted: Tensor
) -> None:
    """See `redo_window_reference`; fp32 states on a GPU, K and V powers of two.

    Raises:
        ShapeError: K or V is none.
    """
    layers, num_slots, heads, key_dim, value_dim = state.shape
    require_power("redo_window", "K", key_dim)
    require_power("redo_window", "V", value_dim)
    columns = min(value_dim, MOST_VALUES)
    launch(
        redo_window_kernel,
        (len(slots), layers * heads, value_dim // columns),
        *(state, records, slots, accepted, num_slots, records[0].shape[2]),
        num_warps=1,
        fuses=True,
        H=heads,
        K=key_dim,
        V=value_dim,
        VALUES=columns,
    )
