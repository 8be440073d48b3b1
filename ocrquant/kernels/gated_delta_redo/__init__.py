"""The gated delta rule over windows of drafted tokens, noting what each token did to the state.

`record_window` leaves the state alone; `redo_window` does again what is accepted. A state has the bits of
tokens that came one by one, and none is written aside.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ocrquant.kernels.contract import I32, Contract
from ocrquant.kernels.gated_delta_redo.native import record_window_native, redo_window_native
from ocrquant.kernels.gated_delta_redo.reference import record_window_reference, redo_window_reference
from ocrquant.kernels.gated_delta_rows.checks import FLOATS, check_native, check_rows
from ocrquant.kernels.selection import implementation

__all__ = ["WindowRecords", "record_window", "redo_window"]


@dataclass(frozen=True, slots=True)
class WindowRecords:
    """What each row of a window does to a state; of one layer, or of all with a first dimension of layers.

    Attributes:
        k: [slots, T, H, K] in the dtype of the state, the key.
        u: [slots, T, H, V], the written value.
        decay: [slots, T, H], e^g.
    """

    k: Tensor
    u: Tensor
    decay: Tensor

    def layer(self, number: int) -> WindowRecords:
        """Those of one layer."""
        return WindowRecords(self.k[number], self.u[number], self.decay[number])


def record_window(
    mixed: Tensor,
    a: Tensor,
    b: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    records: WindowRecords,
    q_start: Tensor,
    slots: Tensor,
    out: Tensor,
    key_heads: int,
) -> None:
    """See `record_window_reference`.

    Raises:
        ShapeError: An argument is not as the reference says.
    """
    contract = Contract("record_window")
    check_rows(contract, mixed, a, b, a_log, dt_bias, state, q_start, slots, out, key_heads)
    contract.tensor("records.k", records.k, "slots T H K", state.dtype)
    contract.tensor("records.u", records.u, "slots T H V", state.dtype)
    contract.tensor("records.decay", records.decay, "slots T H", state.dtype)
    parts = (records.k, records.u, records.decay)
    run = implementation("record_window", mixed, record_window_native, record_window_reference)
    if run is not record_window_reference:
        check_native(contract, state, a_log, dt_bias)
    run(mixed, a, b, a_log, dt_bias, state, parts, q_start, slots, out, key_heads)


def redo_window(state: Tensor, records: WindowRecords, slots: Tensor, accepted: Tensor) -> None:
    """See `redo_window_reference`.

    Raises:
        ShapeError: An argument is not as the reference says.
    """
    contract = Contract("redo_window")
    contract.tensor("state", state, "layers slots H K V", FLOATS)
    contract.tensor("records.k", records.k, "layers slots T H K", state.dtype)
    contract.tensor("records.u", records.u, "layers slots T H V", state.dtype)
    contract.tensor("records.decay", records.decay, "layers slots T H", state.dtype)
    contract.tensor("slots", slots, "N", I32)
    contract.tensor("accepted", accepted, "N", I32)
    kinds = (torch.float32,)
    run = implementation("redo_window", state, redo_window_native, redo_window_reference, kinds)
    run(state, (records.k, records.u, records.decay), slots, accepted)
