"""States kept as they are, one a slot: what pools share that differ only in how a window is undone."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from ocrquant.engine.state.base import StatePool, StateSnapshot, request_count
from ocrquant.kernels.gated_delta_rows import gated_delta_rows
from ocrquant.models.spec import StateSpec
from ocrquant.models.step import DeltaInputs, StateMetadata

__all__ = ["KeptPool"]

Rule = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


class KeptPool(StatePool):
    """States token by token: every row's result is that of a request alone, bit for bit, drafted or not.

    Arguments as for `StatePool`.
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
        self._make_room(window if window > 1 else 0)

    @abstractmethod
    def _make_room(self, drafted: int) -> None:
        """Memory for windows of so many rows, beside `state`."""

    @abstractmethod
    def _advance_window(
        self, layer: int, rule: Rule, starts: Tensor, slots: Tensor, out: Tensor, key_heads: int
    ) -> None:
        """The rows of drafted requests, so that `commit` can keep some of them."""

    def _advance(
        self, layer: int, mixed: Tensor, inputs: DeltaInputs, meta: StateMetadata, out: Tensor
    ) -> None:
        classes = meta.classes
        rule = (mixed, inputs.a, inputs.b, inputs.a_log, inputs.dt_bias, self.state[layer])
        if request_count(classes.drafted):
            some = classes.drafted.requests
            starts = meta.q_start[some.start : some.stop + 1]
            self._advance_window(layer, rule, starts, meta.slots[some], out, inputs.key_heads)
        if request_count(classes.decode) or request_count(classes.prefill):
            some = slice(classes.decode.requests.start, classes.prefill.requests.stop)
            starts = meta.q_start[some.start : some.stop + 1]
            where = (starts, meta.slots[some], meta.fresh[some])
            span = slice(classes.decode.rows.start, classes.prefill.rows.stop)
            gated_delta_rows(*rule, *where, out, inputs.key_heads, span)

    def snapshot(self, slot: int) -> StateSnapshot:
        """See `StatePool`."""
        return StateSnapshot({name: getattr(self, name)[:, slot].clone() for name in ("state", "tail")})

    def restore(self, slot: int, snapshot: StateSnapshot) -> None:
        """See `StatePool`."""
        for name in ("state", "tail"):
            getattr(self, name)[:, slot] = snapshot.tensors[name]
