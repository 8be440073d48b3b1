"""ReplaySSM in plain torch: the definition, in the dtype of the checkpoint.

With the checkpoint S0 and P accepted records (u_j, k_j, g_j), and rho_j = exp(g_(j+1) + ... + g_P):

    S_P x = e^(g_1 + ... + g_P) S0 x + sum over j of rho_j u_j (k_j . x)      for any x; S is [V, K] here
    S_P   = e^(g_1 + ... + g_P) S0   + sum over j of rho_j u_j k_j^T          a fold

and for a window of T tokens behind them, c_s the sum of its first s log gates, hk and hq = S_P k, S_P q:

    u_s + beta_s sum over j < s of e^(c_s - c_j) (k_s . k_j) u_j = beta_s (v_s - e^(c_s) hk_s)
    o_s = e^(c_s) hq_s + sum over j <= s of e^(c_s - c_j) (q_s . k_j) u_j

All exponents are at most 0. Source: the ReplaySSM description at dao-lab.ai/blog/2026/replayssm.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ocrquant.kernels.gated_delta_rows.reference import DeltaTerms, delta_terms
from ocrquant.kernels.replay.layout import Cursors, Records


def _places(cursors: Cursors, slot: int, first: int, count: int, size: int) -> Tensor:
    begin = int(cursors.base[slot]) + first
    return torch.arange(begin, begin + count, device=cursors.base.device) % size


def _accepted(records: Records, cursors: Cursors, slot: int) -> tuple[Tensor, Tensor, Tensor]:
    """Values u [H, P, V], keys [H, P, K] and log gates [H, P] of the accepted records."""
    places = _places(cursors, slot, 0, int(cursors.write_pos[slot]), records.u.shape[2])
    wide, repeats = records.state.dtype, records.u.shape[1] // records.k.shape[1]
    k = records.k[slot][:, places].to(wide).repeat_interleave(repeats, dim=0)
    return records.u[slot][:, places].to(wide), k, records.log_gate[slot][:, places]


def _fold(state: Tensor, u: Tensor, k: Tensor, log_gate: Tensor) -> Tensor:
    """[H, K, V] behind the records."""
    total = log_gate.sum(-1, keepdim=True)
    weights = (total - log_gate.cumsum(-1)).exp()
    return total.exp().unsqueeze(-1) * state + (k * weights.unsqueeze(-1)).mT @ u


def _window(
    records: Records, cursors: Cursors, slot: int, terms: DeltaTerms, rows: slice
) -> tuple[Tensor, ...]:
    """Outputs and written values [H, T, V] of a window, and its keys [H, T, K] and log gates [H, T]."""
    u, k, gates = _accepted(records, cursors, slot)
    folded = _fold(records.state[slot], u, k, gates)
    q, k, v = (x[rows].transpose(0, 1) for x in (terms.q, terms.k, terms.v))
    beta, gates = terms.beta[rows].T.unsqueeze(-1), terms.log_gate[rows].T
    summed = gates.cumsum(-1)
    gaps = (summed.unsqueeze(-1) - summed.unsqueeze(-2)).tril()
    decays = gaps.exp().tril()
    since = summed.exp().unsqueeze(-1)
    system = (beta * decays * (k @ k.mT)).tril(-1)
    written = torch.linalg.solve_triangular(
        system, beta * (v - since * (k @ folded)), upper=False, unitriangular=True
    )
    out = since * (q @ folded) + (decays * (q @ k.mT)) @ written
    return out, written, k, gates


def replay_rows_reference(
    mixed: Tensor,
    a: Tensor,
    b: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    records: Records,
    cursors: Cursors,
    q_start: Tensor,
    slots: Tensor,
    out: Tensor,
    key_heads: int,
    *,
    accepted: bool,
) -> None:
    """Outputs of each request's rows behind its records, and a record of each row; folds where it is due.

    Cursors stay: the rows count once `move_cursors` says how many. Rows, constants and padding as in
    `gated_delta_rows`.

    Args:
        mixed: [R, 2 G K + H V].
        a: [R, H].
        b: [R, H].
        a_log: [H].
        dt_bias: [H].
        records: Checkpoints and rings, changed in place.
        cursors: Read only.
        q_start: i32 [N + 1]; a request has at most `cursors.window` rows.
        slots: i32 [N].
        out: [R, H V].
        key_heads: G.
        accepted: False: the rows are drafts, and a fold leaves them out. True: they count already (a decode
            step), and a fold takes them in, so that with a history of one record every step is the plain
            recurrence, bit for bit in the compiled kernels.
    """
    terms = delta_terms(mixed, a, b, a_log, dt_bias, records.state, key_heads)
    starts = q_start.tolist()
    for i, slot in enumerate(slots.tolist()):
        rows = slice(starts[i], starts[i + 1])
        if slot < 0 or rows.start == rows.stop:
            out[rows] = 0
            continue
        value, written, k, gates = _window(records, cursors, slot, terms, rows)
        out[rows] = value.transpose(0, 1).flatten(1).to(out.dtype)
        past = _accepted(records, cursors, slot)
        length, first = rows.stop - rows.start, int(cursors.write_pos[slot])
        places = _places(cursors, slot, first, length, records.u.shape[2])
        records.u[slot][:, places] = written.to(records.u.dtype)
        repeats = len(k) // records.k.shape[1]
        records.k[slot][:, places] = k[::repeats].to(records.k.dtype)
        records.log_gate[slot][:, places] = gates
        if cursors.flush[slot] != 0:
            new = (written, k, gates)
            parts = [torch.cat(x, dim=1) for x in zip(past, new, strict=True)] if accepted else past
            records.state[slot] = _fold(records.state[slot], *parts)


def replay_fold_reference(records: Records, cursors: Cursors, slots: Tensor, fresh: Tensor) -> None:
    """Brings the checkpoints up to date with their accepted records; the cursors stay.

    Args:
        records: Of one layer; `state` is changed in place.
        cursors: Read only.
        slots: i32 [N]; below zero: padding.
        fresh: i32 [N]; where not 0, the slot's records belong to somebody else and nothing is done.
    """
    for slot, is_fresh in zip(slots.tolist(), fresh.tolist(), strict=True):
        if slot >= 0 and not is_fresh and cursors.write_pos[slot] > 0:
            records.state[slot] = _fold(records.state[slot], *_accepted(records, cursors, slot))


def move_cursors_reference(
    cursors: Cursors, size: int, slots: Tensor, *, accepted: Tensor | None = None, reset: bool = False
) -> None:
    """Counts the rows of the last step, drops what it folded, and says whether the next one folds.

    Args:
        cursors: Changed in place.
        size: buf of the rings.
        slots: i32 [N]; below zero: padding, nothing moves and its accepted is not looked at.
        accepted: i32 [N], how many rows of each window count; beyond 0 .. T counts as the nearer end. None:
            the step's single row counts, and a fold took it in.
        reset: The checkpoint is up to date (a prefill): no records.
    """
    counts = [1] * len(slots) if accepted is None else accepted.clamp(0, cursors.window).tolist()
    for slot, count in zip(slots.tolist(), counts, strict=True):
        if slot < 0:
            continue
        base, held = int(cursors.base[slot]), int(cursors.write_pos[slot])
        if reset:
            base = held = 0
        elif cursors.flush[slot] != 0:
            cursors.flushes[slot] += 1
            taken_in = 1 if accepted is None else 0
            base, held = (base + held + taken_in) % size, count - taken_in
        else:
            held += count
        cursors.base[slot] = base
        cursors.write_pos[slot] = held
        cursors.flush[slot] = int(held + 2 * cursors.window > cursors.history)
