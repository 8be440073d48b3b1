"""A window of tokens behind the records of its slot, as Triton device functions.

The formulas are those of ``replay.reference``. Matrix products go piece by piece along the keys, since each
warp holds all keys of sixteen rows. Knows tiles and rings; knows no request and no launch.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ocrquant.kernels.triton_common.delta import (
    PRECISION,
    gates,
    inverse_length,
    log_gate_sum,
    record_keys,
    record_values,
    ring_places,
)

__all__ = ["advance", "folded_keys", "gates_of", "ring_of"]

CHUNK = tl.constexpr(16)
"""Records that are read at once: what a matrix product takes at least."""


@triton.jit
def ring_of(
    ring,
    slot,
    head,
    H: tl.constexpr,
    G: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    RING: tl.constexpr,
):
    """Values, keys and log gates of one head of a slot."""
    values = ring[0] + (slot * H + head) * (RING * V)
    keys = ring[1] + (slot * G + head // (H // G)) * (RING * K)
    return values, keys, ring[2] + (slot * H + head) * RING


@triton.jit
def loaded(rows, columns, is_there):
    """Float32 [T, columns] of bf16 rows; zeros where there is none."""
    return tl.load(rows[:, None] + columns[None, :], mask=is_there[:, None], other=0.0).to(tl.float32)


@triton.jit
def gates_of(a, a_stride, b, b_stride, constants, row, is_there, head):
    """Beta and log gates [T] of a window; zeros where there is no row."""
    change = tl.load(a + row * a_stride + head, mask=is_there, other=0.0).to(tl.float32)
    wanted = tl.load(b + row * b_stride + head, mask=is_there, other=0.0).to(tl.float32)
    beta, log_gate = gates(change, wanted, tl.load(constants[0] + head), tl.load(constants[1] + head))
    return tl.where(is_there, beta, 0.0), tl.where(is_there, log_gate, 0.0)


@triton.jit
def read_state(tile, queries, lengths, is_there, G: tl.constexpr, K: tl.constexpr, KEYS: tl.constexpr):
    """Products of a window's k and q with a checkpoint, [T, columns], and with its own k, [T, T].

    Args:
        tile: Addresses of the first key's row, [columns].
        queries: Addresses of each row's q of this head; its k lie G K further.
        lengths: What q and k are multiplied by, [T, 1] each, and how far apart two keys of the tile lie.
        is_there: Which rows are real, [T].
        G: Key heads.
        K: Keys.
        KEYS: Of a piece.
    """
    T: tl.constexpr = queries.shape[0]
    VALUES: tl.constexpr = tile.shape[0]
    read_k, read_q = tl.zeros([T, VALUES], tl.float32), tl.zeros([T, VALUES], tl.float32)
    alike, within = tl.zeros([T, T], tl.float32), tl.zeros([T, T], tl.float32)
    for first in range(0, K, KEYS):
        key = first + tl.arange(0, KEYS)
        q = loaded(queries, key, is_there) * lengths[0]
        k = loaded(queries + G * K, key, is_there) * lengths[1]
        state = tl.load(tile[None, :] + key[:, None] * lengths[2])
        read_k += tl.dot(k, state, input_precision=PRECISION)
        read_q += tl.dot(q, state, input_precision=PRECISION)
        alike += tl.dot(k, tl.trans(k), input_precision=PRECISION)
        within += tl.dot(q, tl.trans(k), input_precision=PRECISION)
    return read_k, read_q, alike, within


@triton.jit
def read_records(
    ring,
    place,
    queries,
    lengths,
    is_there,
    total,
    value,
    G: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    KEYS: tl.constexpr,
    RING: tl.constexpr,
):
    """What the records add to both products of `read_state` with the state behind them."""
    T: tl.constexpr = queries.shape[0]
    VALUES: tl.constexpr = value.shape[0]
    base, held = place
    read_k, read_q = tl.zeros([T, VALUES], tl.float32), tl.zeros([T, VALUES], tl.float32)
    passed = 0.0
    for record in range(0, held, CHUNK):
        score_k, score_q = tl.zeros([T, CHUNK], tl.float32), tl.zeros([T, CHUNK], tl.float32)
        for first in range(0, K, KEYS):
            key = first + tl.arange(0, KEYS)
            keys = tl.trans(record_keys(ring, base, record, held, key, RING, CHUNK, K))
            k = loaded(queries + G * K, key, is_there) * lengths[1]
            q = loaded(queries, key, is_there) * lengths[0]
            score_k += tl.dot(k, keys, input_precision=PRECISION)
            score_q += tl.dot(q, keys, input_precision=PRECISION)
        values, passed = record_values(ring, base, record, held, passed, total, value, RING, CHUNK, V)
        read_k += tl.dot(score_k, values, input_precision=PRECISION)
        read_q += tl.dot(score_q, values, input_precision=PRECISION)
    return read_k, read_q


@triton.jit
def _solved(right, system):
    """U of (I + system) U = right for a strictly lower system, by substitution from the first row on."""
    T: tl.constexpr = system.shape[0]
    row, column = tl.arange(0, T)[:, None], tl.arange(0, T)[None, :]
    for s in range(T):
        done = tl.sum(tl.where(row == s, right, 0.0), axis=0)
        weight = tl.sum(tl.where(column == s, system, 0.0), axis=1)
        right -= weight[:, None] * done[None, :]
    return right


@triton.jit
def folded_keys(state, ring, place, key, total, value, K: tl.constexpr, V: tl.constexpr, RING: tl.constexpr):
    """Rows of a checkpoint [keys, columns] behind all records."""
    base, held = place
    folded = state * tl.exp(total)
    passed = 0.0
    for record in range(0, held, CHUNK):
        keys = record_keys(ring, base, record, held, key, RING, CHUNK, K)
        values, passed = record_values(ring, base, record, held, passed, total, value, RING, CHUNK, V)
        folded += tl.dot(tl.trans(keys), values, input_precision=PRECISION)
    return folded


@triton.jit
def store_keys(ring, place, queries, scale, is_there, K: tl.constexpr, KEYS: tl.constexpr):
    """Normalised keys of a window, a piece at a time, behind the records."""
    target = ring[1] + place[:, None] * K
    for first_key in range(0, K, KEYS):
        key = first_key + tl.arange(0, KEYS)
        k = loaded(queries, key, is_there) * scale
        tl.store(target + key[None, :], k.to(ring[1].dtype.element_ty), mask=is_there[:, None])


@triton.jit
def window(read_k, read_q, alike, within, v, beta, log_gate):
    """Values written and outputs [T, columns] of a window, and its summed log gates [T].

    Args:
        read_k: The state in front of the window times k, [T, columns].
        read_q: The same times q.
        alike: k times k, [T, T].
        within: q times k.
        v: [T, columns].
        beta: [T].
        log_gate: [T].
    """
    T: tl.constexpr = alike.shape[0]
    row, column = tl.arange(0, T)[:, None], tl.arange(0, T)[None, :]
    summed = tl.cumsum(log_gate, axis=0)
    since = tl.exp(summed)[:, None]
    gap = tl.where(row >= column, summed[:, None] - summed[None, :], float("-inf"))
    decay = tl.exp(gap)
    system = tl.where(row > column, beta[:, None] * decay * alike, 0.0)
    u = _solved(beta[:, None] * (v - since * read_k), system)
    o = since * read_q + tl.dot(decay * within, u, input_precision=PRECISION)
    return u, o, summed


@triton.jit
def advance(
    rows,
    tile,
    ring,
    place,
    value,
    is_first,
    is_leader,
    G: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    KEYS: tl.constexpr,
    RING: tl.constexpr,
    FOLDS: tl.constexpr,
    IS_ACCEPTED: tl.constexpr,
):
    """Outputs of a window for some columns of one head, its records, and the fold where it is due.

    Args:
        rows: Addresses of each row's q and v, beta, log gates, which rows are real, addresses of the outputs.
        tile: Addresses of the columns of the checkpoint's first key.
        ring: What `ring_of` made.
        place: Place of record 0, and how many there are.
        value: Columns.
        is_first: Whether this program writes the log gates.
        is_leader: Whether it writes the keys, which several heads share.
        G: Key heads.
        K: Keys.
        V: Values.
        KEYS: Of a piece.
        RING: Records that a ring has room for.
        FOLDS: Whether the records go into the checkpoint.
        IS_ACCEPTED: Whether the rows of the window do too.
    """
    queries, values, beta, log_gate, is_there, target = rows
    T: tl.constexpr = queries.shape[0]
    total = log_gate_sum(ring, place[0], place[1], RING)
    key = tl.arange(0, K)
    lengths = (
        inverse_length(loaded(queries, key, is_there)) * K**-0.5,
        inverse_length(loaded(queries + G * K, key, is_there)),
        V,
    )
    read_k, read_q, alike, within = read_state(tile, queries, lengths, is_there, G, K, KEYS)
    more_k, more_q = read_records(ring, place, queries, lengths, is_there, total, value, G, K, V, KEYS, RING)
    read_k, read_q = read_k * tl.exp(total) + more_k, read_q * tl.exp(total) + more_q
    u, o, summed = window(read_k, read_q, alike, within, loaded(values, value, is_there), beta, log_gate)
    tl.store(target, o.to(tl.bfloat16), mask=is_there[:, None])
    behind = ring_places(place[0], place[1], T, RING)
    written = ring[0] + behind[:, None] * V + value[None, :]
    tl.store(written, u.to(written.dtype.element_ty), mask=is_there[:, None])
    if is_first:
        tl.store(ring[2] + behind, log_gate, mask=is_there)
    if is_leader:
        store_keys(ring, behind, queries + G * K, lengths[1], is_there, K, KEYS)
    if FOLDS:
        last = tl.sum(log_gate, axis=0)
        kept = u * tl.exp(last - summed)[:, None]
        for first in range(0, K, KEYS):
            some = first + tl.arange(0, KEYS)
            addresses = tile[None, :] + some[:, None] * V
            folded = folded_keys(tl.load(addresses), ring, place, some, total, value, K, V, RING)
            if IS_ACCEPTED:
                k = loaded(queries + G * K, some, is_there) * lengths[1]
                folded = folded * tl.exp(last) + tl.dot(tl.trans(k), kept, input_precision=PRECISION)
            tl.store(addresses, folded)
