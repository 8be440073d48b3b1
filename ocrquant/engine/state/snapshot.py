"""States kept as they are, with one state more for each drafted token while a window is open.

What `NativePool` saves: kept to be measured against.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ocrquant.engine.state.kept import KeptPool, Rule
from ocrquant.kernels.gated_delta_window import gated_delta_window
from ocrquant.kernels.window_commit import commit_state

__all__ = ["SnapshotPool"]


class SnapshotPool(KeptPool):
    """A window writes a whole state for each of its tokens; `commit` copies that of the last accepted one."""

    def _make_room(self, drafted: int) -> None:
        layers, slots, *heads = self.state.shape
        shape = (layers, slots, drafted, *heads)
        self.states = torch.zeros(shape, dtype=self.state.dtype, device=self.device)

    def _advance_window(
        self, layer: int, rule: Rule, starts: Tensor, slots: Tensor, out: Tensor, key_heads: int
    ) -> None:
        gated_delta_window(*rule, self.states[layer], starts, slots, out, key_heads)

    def _commit(self, slots: Tensor, accepted: Tensor) -> None:
        commit_state(self.state, self.states, slots, accepted)

    def slot_tensors(self, slot: int) -> dict[str, Tensor]:
        """See `StatePool`."""
        names = ("state", "tail", "inputs", "states")
        return {name: getattr(self, name)[:, slot] for name in names}
