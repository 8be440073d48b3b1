"""States kept as they are; of a window it is noted what each row does, and what is accepted is done again."""

from __future__ import annotations

import torch
from torch import Tensor

from ocrquant.engine.state.base import StatePool, StateSnapshot, request_count
from ocrquant.kernels.gated_delta_redo import WindowRecords, record_window, redo_window
from ocrquant.kernels.gated_delta_rows import gated_delta_rows
from ocrquant.models.spec import StateSpec
from ocrquant.models.step import DeltaInputs, StateMetadata

__all__ = ["NativePool"]


class NativePool(StatePool):
    """States token by token: every row's result is that of a request alone, bit for bit, drafted or not.

    A window notes a key, a value and a decay for each of its tokens; `commit` does the accepted ones again,
    by the same steps. Arguments as for `StatePool`.
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
        layers, slots, heads, key_dim, value_dim = self.state.shape
        shape = (layers, slots, window if window > 1 else 0, heads)

        def zeros(*sizes: int) -> Tensor:
            return torch.zeros(*shape, *sizes, dtype=state_dtype, device=self.device)

        self.records = WindowRecords(zeros(key_dim), zeros(value_dim), zeros())
        self._by_layer = [self.records.layer(number) for number in range(layers)]

    def _advance(
        self, layer: int, mixed: Tensor, inputs: DeltaInputs, meta: StateMetadata, out: Tensor
    ) -> None:
        classes, state = meta.classes, self.state[layer]
        rule = (mixed, inputs.a, inputs.b, inputs.a_log, inputs.dt_bias, state)
        if request_count(classes.drafted):
            some = classes.drafted.requests
            starts = meta.q_start[some.start : some.stop + 1]
            record_window(*rule, self._by_layer[layer], starts, meta.slots[some], out, inputs.key_heads)
        if request_count(classes.decode) or request_count(classes.prefill):
            some = slice(classes.decode.requests.start, classes.prefill.requests.stop)
            starts = meta.q_start[some.start : some.stop + 1]
            gated_delta_rows(*rule, starts, meta.slots[some], meta.fresh[some], out, inputs.key_heads)

    def _commit(self, slots: Tensor, accepted: Tensor) -> None:
        redo_window(self.state, self.records, slots, accepted)

    def slot_tensors(self, slot: int) -> dict[str, Tensor]:
        """See `StatePool`."""
        found: dict[str, Tensor] = {
            name: getattr(self, name)[:, slot] for name in ("state", "tail", "inputs")
        }
        return found | {name: getattr(self.records, name)[:, slot] for name in ("k", "u", "decay")}

    def snapshot(self, slot: int) -> StateSnapshot:
        """See `StatePool`."""
        return StateSnapshot({name: getattr(self, name)[:, slot].clone() for name in ("state", "tail")})

    def restore(self, slot: int, snapshot: StateSnapshot) -> None:
        """See `StatePool`."""
        for name in ("state", "tail"):
            getattr(self, name)[:, slot] = snapshot.tensors[name]
