"""States kept as checkpoints and records of what followed (ReplaySSM): drafts are undone by a cursor.

Cursors are the same for all layers and move behind the last one. A decode row is recorded like a window of
one that is accepted at once; the part of a prompt works on the checkpoint, which takes in what is recorded
first.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ocrquant.engine.state.base import StatePool, StateSnapshot, request_count
from ocrquant.errors import EngineError
from ocrquant.kernels.gated_delta_rows import gated_delta_rows
from ocrquant.kernels.replay import Cursors, Records, move_cursors, replay_fold, replay_rows
from ocrquant.models.spec import StateSpec
from ocrquant.models.step import DeltaInputs, Rows, StateMetadata

__all__ = ["ReplayPool", "default_history"]

CURSORS = ("base", "write_pos", "flush")
RECORDS = ("u", "k", "log_gate")


def default_history(window: int) -> int:
    """Records that a slot holds at most: the least with which a window never waits for a fold, or 16.

    On a CPU a fold costs arithmetic for each record, whenever it happens, so the shortest history is as fast
    as any: one layer of 32 heads of 128, windows of 16 of which 12 are accepted, took 2.96, 2.95 and 3.05 ms
    a request with histories of 32, 48 and 64, against 7.4 ms for a state per draft (one EPYC core with AVX2,
    2026-11-30). A GPU, which pays for the state's way to memory, does better with four windows.
    """
    return max(16, 2 * window)


class ReplayPool(StatePool):
    """Checkpoints and rings of records.

    Args:
        spec: As for `StatePool`, like those that follow.
        num_slots: Length of the slot axis.
        max_rows: Most rows of a step.
        window: T, most rows of a drafted request in one step.
        history: L, most records of a slot, drafts included: at least 2 T, or 1 where nothing is drafted, and
            then every step is the plain recurrence, bit for bit. Longer ones fold less often and read more.
        dtype: Of activations.
        device: Where the states are.
        state_dtype: Of checkpoints and arithmetic.
        record_dtype: Of recorded keys and values; None for that of the states. bf16 halves the rings and
            costs accuracy: see `drift`.

    Raises:
        EngineError: The history is too short.
    """

    def __init__(
        self,
        spec: StateSpec,
        *,
        num_slots: int,
        max_rows: int,
        window: int = 1,
        history: int | None = None,
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str = "cpu",
        state_dtype: torch.dtype = torch.float32,
        record_dtype: torch.dtype | None = None,
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
        length = default_history(window) if history is None else history
        least = 1 if window == 1 else 2 * window
        if length < least:
            fix = "take a longer history, or None"
            raise EngineError("state: history", expected=f"at least {least}", given=length, fix=fix)
        size = 1 << (length - 1).bit_length()
        pool, kind = (spec.num_layers, num_slots), record_dtype or state_dtype
        self.u = torch.zeros(*pool, spec.value_heads, size, spec.value_dim, dtype=kind, device=self.device)
        self.k = torch.zeros(*pool, spec.key_heads, size, spec.key_dim, dtype=kind, device=self.device)
        self.log_gate = torch.zeros(*pool, spec.value_heads, size, dtype=state_dtype, device=self.device)
        base, write_pos, flush, flushes = torch.zeros(4, num_slots, dtype=torch.int32, device=self.device)
        self.cursors = Cursors(base, write_pos, flush, flushes, history=length, window=window)
        self.cursors.flush.fill_(self._is_due(0))
        self.size = size

    @property
    def flush_count(self) -> int:
        """Folds inside steps since the pool was made, over all slots; each is one of every layer."""
        return int(self.cursors.flushes.sum())

    def _is_due(self, write_pos: int) -> int:
        return int(write_pos + 2 * self.window > self.cursors.history)

    def records(self, layer: int) -> Records:
        """One layer's part."""
        return Records(self.state[layer], self.u[layer], self.k[layer], self.log_gate[layer])

    def _advance(
        self, layer: int, mixed: Tensor, inputs: DeltaInputs, meta: StateMetadata, out: Tensor
    ) -> None:
        classes, records = meta.classes, self.records(layer)
        rule = (mixed, inputs.a, inputs.b, inputs.a_log, inputs.dt_bias)

        def recorded(rows: Rows, *, accepted: bool) -> None:
            if request_count(rows):
                starts = meta.q_start[rows.requests.start : rows.requests.stop + 1]
                where = (starts, meta.slots[rows.requests])
                replay_rows(*rule, records, self.cursors, *where, out, inputs.key_heads, accepted=accepted)

        recorded(classes.drafted, accepted=False)
        recorded(classes.decode, accepted=True)
        some = classes.prefill.requests
        if request_count(classes.prefill):
            slots, fresh = meta.slots[some], meta.fresh[some]
            replay_fold(records, self.cursors, slots, fresh)
            starts = meta.q_start[some.start : some.stop + 1]
            span = classes.prefill.rows
            gated_delta_rows(*rule, records.state, starts, slots, fresh, out, inputs.key_heads, span)
        if layer == self.spec.num_layers - 1:
            self._move_cursors(meta)

    def _move_cursors(self, meta: StateMetadata) -> None:
        """Behind the last layer: decode rows count, and prefilled slots have no records."""
        classes = meta.classes
        if request_count(classes.decode):
            move_cursors(self.cursors, self.size, meta.slots[classes.decode.requests])
        if request_count(classes.prefill):
            move_cursors(self.cursors, self.size, meta.slots[classes.prefill.requests], reset=True)

    def _commit(self, slots: Tensor, accepted: Tensor) -> None:
        move_cursors(self.cursors, self.size, slots, accepted=accepted)

    def slot_tensors(self, slot: int) -> dict[str, Tensor]:
        """See `StatePool`."""
        names = ("state", "tail", "inputs", *RECORDS)
        found: dict[str, Tensor] = {name: getattr(self, name)[:, slot] for name in names}
        return found | {name: getattr(self.cursors, name)[slot : slot + 1] for name in CURSORS}

    def snapshot(self, slot: int, *, folded: bool = False) -> StateSnapshot:
        """Copies the state of a slot; the slot stays as it is.

        Args:
            slot: Its number.
            folded: Take the records into the copied state: smaller, but what follows a restore then
                differs in rounding from what follows in the slot. Otherwise the records are copied, and it
                does not.
        """
        write_pos = int(self.cursors.write_pos[slot])
        tensors = {name: getattr(self, name)[:, slot].clone() for name in ("state", "tail")}
        if folded:
            if write_pos:
                self._fold_copy(slot, tensors["state"])
            return StateSnapshot(tensors)
        places = (int(self.cursors.base[slot]) + torch.arange(write_pos)) % self.size
        for name in RECORDS:
            tensors[name] = getattr(self, name)[:, slot][:, :, places.to(self.state.device)]
        return StateSnapshot(tensors, write_pos)

    def _fold_copy(self, slot: int, state: Tensor) -> None:
        one = slice(slot, slot + 1)
        cursors = self.cursors
        own = Cursors(
            cursors.base[one],
            cursors.write_pos[one],
            cursors.flush[one],
            cursors.flushes[one],
            history=cursors.history,
            window=cursors.window,
        )
        zero = torch.zeros(1, dtype=torch.int32, device=self.device)
        for layer in range(self.spec.num_layers):
            rings = (getattr(self, name)[layer, one] for name in RECORDS)
            replay_fold(Records(state[layer].unsqueeze(0), *rings), own, zero, zero)

    def restore(self, slot: int, snapshot: StateSnapshot) -> None:
        """See `StatePool`."""
        for name in ("state", "tail"):
            getattr(self, name)[:, slot] = snapshot.tensors[name]
        if snapshot.write_pos:
            for name in RECORDS:
                getattr(self, name)[:, slot][:, :, : snapshot.write_pos] = snapshot.tensors[name]
        self.cursors.base[slot] = 0
        self.cursors.write_pos[slot] = snapshot.write_pos
        self.cursors.flush[slot] = self._is_due(snapshot.write_pos)

    def check_integrity(self, slots: Iterable[int]) -> None:
        """Looks at slots that are in use between steps.

        Raises:
            AssertionError: As `StatePool`, or cursors or records are not as they must be.
        """
        slots = list(slots)
        super().check_integrity(slots)
        for slot in slots:
            base, held, flush = (int(getattr(self.cursors, name)[slot]) for name in CURSORS)
            assert 0 <= base < self.size, f"base {base} of slot {slot} is outside its ring"
            room = self.cursors.history - self.window
            assert 0 <= held <= max(room, 0), f"{held} records of slot {slot} leave no room for a window"
            assert flush == self._is_due(held), f"slot {slot} folds at the wrong time"
            places = (base + torch.arange(held)) % self.size
            for name in RECORDS:
                live: Tensor = getattr(self, name)[:, slot][:, :, places.to(self.state.device)]
                assert bool(live.isfinite().all()), f"{name} of slot {slot} is not finite"
