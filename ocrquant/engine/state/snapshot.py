"""States kept as they are, with one state more for each drafted token while a window is open.

What `NativePool` saves: kept to be measured against.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ocrquant.engine.state.base import StatePool, StateSnapshot, request_count
from ocrquant.kernels.gated_delta_rows import gated_delta_rows
from ocrquant.kernels.gated_delta_window import gated_delta_window
from ocrquant.kernels.window_commit import commit_state
from ocrquant.models.spec import StateSpec
from ocrquant.models.step import DeltaInputs, StateMetadata

__all__ = ["SnapshotPool"]


class SnapshotPool(StatePool):
    """States token by token: every row's result is that of a request alone, bit for bit, drafted or not.

    A window writes a whole state for each of its tokens; `commit` copies the one behind the last accepted
    token. Arguments as for `StatePool`.
    """

    def __init__(
        self,
        spec: StateSpec,
        *,
        num_slots: int,
        max_rows: int,
        window: int = 1,
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str = "cpu",
        state_dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(
            spec,
            num_slots=num_slots,
            max_rows=max_rows,
            window=window,
            dtype=dtype,
            device=device,
            state_dtype=state_dtype,
        )
        layers, slots, *heads = self.state.shape
        drafted = window if window > 1 else 0
        self.states = torch.zeros(layers, slots, drafted, *heads, dtype=state_dtype, device=self.device)

    def _advance(
        self, layer: int, mixed: Tensor, inputs: DeltaInputs, meta: StateMetadata, out: Tensor
    ) -> None:
        classes, state = meta.classes, self.state[layer]
        rule = (mixed, inputs.a, inputs.b, inputs.a_log, inputs.dt_bias, state)
        if request_count(classes.drafted):
            some = classes.drafted.requests
            starts = meta.q_start[some.start : some.stop + 1]
            gated_delta_window(*rule, self.states[layer], starts, meta.slots[some], out, inputs.key_heads)
        if request_count(classes.decode) or request_count(classes.prefill):
            some = slice(classes.decode.requests.start, classes.prefill.requests.stop)
            starts = meta.q_start[some.start : some.stop + 1]
            gated_delta_rows(*rule, starts, meta.slots[some], meta.fresh[some], out, inputs.key_heads)

    def _commit(self, slots: Tensor, accepted: Tensor) -> None:
        commit_state(self.state, self.states, slots, accepted)

    def slot_tensors(self, slot: int) -> dict[str, Tensor]:
        """See `StatePool`."""
        names = ("state", "tail", "inputs", "states")
        return {name: getattr(self, name)[:, slot] for name in names}

    def snapshot(self, slot: int) -> StateSnapshot:
        """See `StatePool`."""
        return StateSnapshot({name: getattr(self, name)[:, slot].clone() for name in ("state", "tail")})

    def restore(self, slot: int, snapshot: StateSnapshot) -> None:
        """See `StatePool`."""
        for name in ("state", "tail"):
            getattr(self, name)[:, slot] = snapshot.tensors[name]
