"""How checkpoints, records and cursors of a pool of slots lie in memory."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Records:
    """One layer's checkpoints and rings.

    Record i of a slot lies at (base + i) mod buf; buf is a power of two.

    Attributes:
        state: fp32 (fp64 in a reference) [slots, H, K, V], the checkpoint.
        u: [slots, H, buf, V], what each token wrote, fp32 or bf16.
        k: [slots, G, buf, K] in the dtype of u, normalised keys.
        log_gate: [slots, H, buf] in the dtype of state.
    """

    state: Tensor
    u: Tensor
    k: Tensor
    log_gate: Tensor


@dataclass(frozen=True, slots=True)
class Cursors:
    """Where each slot's records begin and end; one for all layers.

    With `window` the most tokens that a step may append, `history` records fit: a slot whose records might
    not leave room for another window after the next one is folded by the next step (`flush`), so that a flush
    never waits for a decision. The fold takes what was accepted before the step, never a draft.

    Attributes:
        base: i32 [slots], place of record 0.
        write_pos: i32 [slots], accepted records, those that the next step folds included.
        flush: i32 [slots], 1 where the next step folds.
        flushes: i32 [slots], how often a step folded since the pool was made.
        history: L, most records that a slot may hold, drafts included.
        window: T, most rows of a request in one step.
    """

    base: Tensor
    write_pos: Tensor
    flush: Tensor
    flushes: Tensor
    history: int
    window: int
