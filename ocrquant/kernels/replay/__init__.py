"""ReplaySSM for the gated delta rule: a checkpoint of the state and a ring of small records of what followed.

A step reads the checkpoint once, however many drafted tokens it verifies, and drafts are undone by not moving
a cursor. `replay_rows` is the operation, `replay_fold` brings a checkpoint up to date, `move_cursors` counts
what was accepted. Knows nothing of layers or schedulers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ocrquant.kernels.contract import Contract
from ocrquant.kernels.gated_delta_rows.checks import check_native, check_rows
from ocrquant.kernels.replay.checks import check_cursors, check_records
from ocrquant.kernels.replay.layout import Cursors, Records
from ocrquant.kernels.replay.native import move_cursors_native, replay_fold_native, replay_rows_native
from ocrquant.kernels.replay.reference import (
    move_cursors_reference,
    replay_fold_reference,
    replay_rows_reference,
)
from ocrquant.kernels.selection import implementation

__all__ = ["Cursors", "Records", "move_cursors", "replay_fold", "replay_rows"]


def replay_rows(
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
    """See `replay_rows_reference`.

    Raises:
        ShapeError: An argument is not as the reference says.
    """
    contract = Contract("replay_rows", G=key_heads)
    check_records(contract, records)
    check_cursors(contract, cursors, records.u.shape[2])
    check_rows(contract, mixed, a, b, a_log, dt_bias, records.state, q_start, slots, out, key_heads)
    run = implementation("replay_rows", mixed, replay_rows_native, replay_rows_reference)
    if run is not replay_rows_reference:
        check_native(contract, records.state, a_log, dt_bias)
    run(mixed, a, b, a_log, dt_bias, records, cursors, q_start, slots, out, key_heads, accepted=accepted)


def replay_fold(records: Records, cursors: Cursors, slots: Tensor, fresh: Tensor) -> None:
    """See `replay_fold_reference`.

    Raises:
        ShapeError: An argument is not as the reference says.
    """
    contract = Contract("replay_fold")
    check_records(contract, records)
    check_cursors(contract, cursors, records.u.shape[2])
    contract.tensor("slots", slots, "N", torch.int32)
    contract.tensor("fresh", fresh, "N", torch.int32)
    kinds = (torch.float32,)
    run = implementation("replay_fold", records.state, replay_fold_native, replay_fold_reference, kinds)
    run(records, cursors, slots, fresh)


def move_cursors(
    cursors: Cursors, size: int, slots: Tensor, *, accepted: Tensor | None = None, reset: bool = False
) -> None:
    """See `move_cursors_reference`.

    Raises:
        ShapeError: An argument is not as the reference says.
    """
    contract = Contract("move_cursors")
    check_cursors(contract, cursors, size)
    contract.tensor("slots", slots, "N", torch.int32)
    if accepted is not None:
        contract.tensor("accepted", accepted, "N", torch.int32)
    kinds = (torch.int32,)
    run = implementation("move_cursors", cursors.base, move_cursors_native, move_cursors_reference, kinds)
    run(cursors, size, slots, accepted=accepted, reset=reset)
