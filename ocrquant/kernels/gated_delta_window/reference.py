"""The gated delta rule over windows in plain torch: the definition."""

from __future__ import annotations

from torch import Tensor

from ocrquant.kernels.gated_delta_rows.reference import delta_terms, recurrence_step


def gated_delta_window_reference(
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
    """Runs the rule from each request's state without changing it; writes the state behind each token aside.

    Rows, constants and padding as in `gated_delta_rows`, and bit for bit its outputs and states.

    Args:
        mixed: [R, 2 G K + H V].
        a: [R, H].
        b: [R, H].
        a_log: [H].
        dt_bias: [H].
        state: [slots, H, K, V], read only.
        states: [slots, T, H, K, V] like state; states[slot, j] becomes the state behind token j.
        q_start: i32 [N + 1]; a request has at most T rows.
        slots: i32 [N].
        out: [R, H V].
        key_heads: G.
    """
    terms = delta_terms(mixed, a, b, a_log, dt_bias, state, key_heads)
    starts = q_start.tolist()
    for i, slot in enumerate(slots.tolist()):
        if slot < 0:
            out[starts[i] : starts[i + 1]] = 0
            continue
        running = state[slot].clone()
        for token, row in enumerate(range(starts[i], starts[i + 1])):
            value, _ = recurrence_step(running, terms, row)
            out[row] = value.flatten().to(out.dtype)
            states[slot, token] = running
