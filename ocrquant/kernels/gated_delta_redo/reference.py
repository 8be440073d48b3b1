"""Windows of the gated delta rule and their commits in plain torch: the definition."""

from __future__ import annotations

from torch import Tensor

from ocrquant.kernels.gated_delta_rows.reference import delta_terms, recurrence_step


def record_window_reference(
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
    """Runs the rule from each request's state without changing it; notes what each token does to the state.

    Rows, constants and padding as in `gated_delta_rows`, and bit for bit its outputs.

    Args:
        mixed: [R, 2 G K + H V].
        a: [R, H].
        b: [R, H].
        a_log: [H].
        dt_bias: [H].
        state: [slots, H, K, V], read only.
        records: k [slots, T, H, K], u [slots, T, H, V] and decay [slots, T, H] like state; place [slot, j] is
            that of token j.
        q_start: i32 [N + 1]; a request has at most T rows.
        slots: i32 [N].
        out: [R, H V].
        key_heads: G.
    """
    terms = delta_terms(mixed, a, b, a_log, dt_bias, state, key_heads)
    keys, values, decays = records
    starts = q_start.tolist()
    for i, slot in enumerate(slots.tolist()):
        if slot < 0:
            out[starts[i] : starts[i + 1]] = 0
            continue
        running = state[slot].clone()
        for token, row in enumerate(range(starts[i], starts[i + 1])):
            value, written = recurrence_step(running, terms, row)
            out[row] = value.flatten().to(out.dtype)
            keys[slot, token], values[slot, token] = terms.k[row], written
            decays[slot, token] = terms.log_gate[row].exp()


def redo_window_reference(
    state: Tensor, records: tuple[Tensor, Tensor, Tensor], slots: Tensor, accepted: Tensor
) -> None:
    """The state takes in the first tokens of a window, in all layers: S <- e^g S + k u^T for each.

    Args:
        state: [layers, slots, H, K, V], changed in place.
        records: Those of `record_window_reference` for each layer.
        slots: i32 [N]. Below zero: padding, nothing moves and its accepted is not looked at.
        accepted: i32 [N]; numbers beyond 0 .. T count as the nearer end.
    """
    keys, values, decays = records
    for slot, count in zip(slots.tolist(), accepted.clamp(0, keys.shape[2]).tolist(), strict=True):
        if slot < 0:
            continue
        for token in range(count):
            k, u = keys[:, slot, token], values[:, slot, token]
            state[:, slot] *= decays[:, slot, token][..., None, None]
            state[:, slot] += k.unsqueeze(-1) * u.unsqueeze(-2)
