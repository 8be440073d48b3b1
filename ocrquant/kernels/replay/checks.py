"""What the operations on records ask of checkpoints, rings and cursors."""

from __future__ import annotations

import torch

from ocrquant.kernels.contract import Contract
from ocrquant.kernels.gated_delta_rows.checks import FLOATS
from ocrquant.kernels.replay.layout import Cursors, Records


def check_records(contract: Contract, records: Records) -> None:
    """Binds slots, H, K, V, G and buf.

    Raises:
        ShapeError: A tensor is not as `Records` says.
    """
    contract.tensor("records.state", records.state, "slots H K V", FLOATS)
    kinds = (torch.float32, torch.bfloat16, records.state.dtype)
    contract.tensor("records.u", records.u, "slots H buf V", kinds)
    contract.tensor("records.k", records.k, "slots G buf K", records.u.dtype)
    contract.tensor("records.log_gate", records.log_gate, "slots H buf", records.state.dtype)
    size = records.u.shape[2]
    contract.require(size & (size - 1) == 0, "records.u", "a ring whose size is a power of two", size)


def check_cursors(contract: Contract, cursors: Cursors, size: int) -> None:
    """Binds slots.

    Raises:
        ShapeError: A tensor is not as `Cursors` says, or windows and history do not fit the ring of `size`.
    """
    for name in ("base", "write_pos", "flush", "flushes"):
        contract.tensor(f"cursors.{name}", getattr(cursors, name), "slots", torch.int32)
    history, window = cursors.history, cursors.window
    least = 1 if window == 1 else 2 * window
    contract.require(least <= history <= size, "cursors.history", f"{least} .. {size} records", history)
