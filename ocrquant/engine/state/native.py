"""States kept as they are; of a window it is noted what each row does, and what is accepted is done again."""

from __future__ import annotations

import torch
from torch import Tensor

from ocrquant.engine.state.kept import KeptPool, Rule
from ocrquant.kernels.gated_delta_redo import WindowRecords, record_window, redo_window

__all__ = ["NativePool"]


class NativePool(KeptPool):
    """A window notes key, value and decay of each of its tokens; `commit` does the accepted ones again.

    It does them by the same steps, so that the bits are those of rows that were never drafted.
    """

    def _make_room(self, drafted: int) -> None:
        layers, slots, heads, key_dim, value_dim = self.state.shape
        shape = (layers, slots, drafted, heads)

        def zeros(*sizes: int) -> Tensor:
            return torch.zeros(*shape, *sizes, dtype=self.state.dtype, device=self.device)

        self.records = WindowRecords(zeros(key_dim), zeros(value_dim), zeros())
        self._by_layer = [self.records.layer(number) for number in range(layers)]

    def _advance_window(
        self, layer: int, rule: Rule, starts: Tensor, slots: Tensor, out: Tensor, key_heads: int
    ) -> None:
        record_window(*rule, self._by_layer[layer], starts, slots, out, key_heads)

    def _commit(self, slots: Tensor, accepted: Tensor) -> None:
        redo_window(self.state, self.records, slots, accepted)

    def slot_tensors(self, slot: int) -> dict[str, Tensor]:
        """See `StatePool`."""
        found: dict[str, Tensor] = {
            name: getattr(self, name)[:, slot] for name in ("state", "tail", "inputs")
        }
        return found | {name: getattr(self.records, name)[:, slot] for name in ("k", "u", "decay")}
