"""``gated_delta_window`` in Triton."""

from __future__ import annotations

from torch import Tensor

from ocrquant.kernels.gated_delta_rows.triton import launch_rows


def gated_delta_window_triton(
    mixed: Tensor,
    a: Tensor,
    b: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    states: Tensor,
    q_start: Tensor,
    slots: Tensor,
    out: Tensor,
    key_heads: int,
) -> None:
    """See `gated_delta_window_reference`; bf16 rows and fp32 states on a GPU, K and V powers of two.

    Raises:
        ShapeError: K or V is none.
    """
    rows, where = (mixed, a, b, a_log, dt_bias), (q_start, slots, None)
    launch_rows("gated_delta_window", rows, state, where, out, key_heads, states=states)
