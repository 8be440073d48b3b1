"""What an engine sees of recurrent states: advance, open a window, commit what counts, keep and restore.

The engine never learns how drafts are undone. Tensors lie in pools [layers, slots, ...]; a slot's content
means something only from a request's first row (`fresh`) to its last.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from ocrquant.errors import EngineError
from ocrquant.kernels.causal_conv import causal_conv
from ocrquant.kernels.window_commit import commit_tail
from ocrquant.models.spec import StateSpec
from ocrquant.models.step import DeltaInputs, Rows, StateMetadata

__all__ = ["Numbers", "StatePool", "StateSnapshot"]

Numbers = Tensor | Sequence[int]
"""Int32 on the device, or numbers of the host."""

Capture: TypeAlias = Callable[[Callable[[], None]], Callable[[], None]]
"""Records what a function launches and gives what launches it again; see `engine.device.Device.capture`."""


@dataclass(frozen=True, slots=True)
class StateSnapshot:
    """The state of one request in all layers, apart from any slot.

    Attributes:
        tensors: Copies by name.
        write_pos: Records among them that the state does not hold yet; 0 where there are none.
    """

    tensors: dict[str, Tensor]
    write_pos: int = 0

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


def request_count(rows: Rows) -> int:
    """Requests of a class."""
    return int(rows.requests.stop - rows.requests.start)


class StatePool(ABC):
    """States of all layers and slots.

    Args:
        spec: The layers' sizes.
        num_slots: Length of the slot axis.
        max_rows: Most rows of a step.
        window: Most rows of a drafted request in one step; 1 where nothing is drafted.
        dtype: Of activations.
        device: Where the states are.
        state_dtype: Of the states and of the arithmetic on them.
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
        self.spec, self.num_slots, self.window = spec, num_slots, window
        self.device = torch.device(device)
        pool = (spec.num_layers, num_slots)
        heads = (spec.value_heads, spec.key_dim, spec.value_dim)
        self.state = torch.zeros(*pool, *heads, dtype=state_dtype, device=self.device)
        self.tail = torch.zeros(
            *pool, spec.conv_taps - 1, spec.conv_channels, dtype=dtype, device=self.device
        )
        drafted = window if window > 1 else 0
        self.inputs = torch.zeros(*pool, drafted, spec.conv_channels, dtype=dtype, device=self.device)
        self._convolved = torch.zeros(max_rows, spec.conv_channels, dtype=dtype, device=self.device)
        self._staged = torch.zeros(2, num_slots, dtype=torch.int32, device=self.device)
        self._staged_here = self._staged.numpy() if self.device.type == "cpu" else None
        self._programs: dict[int, Callable[[], None]] = {}
        self._open: tuple[int, int] | None = None

    def advance(self, layer: int, inputs: DeltaInputs, meta: StateMetadata, out: Tensor) -> None:
        """Convolution and recurrence of one layer over all rows of a step; states move on in place.

        Layers are advanced in order, each once a step. Rows of the drafted class need an open window and can
        be undone; those of the others count at once.

        Args:
            layer: Number of the layer among those with a state.
            inputs: Its rows and constants.
            meta: Where the requests' states are.
            out: [R, value_heads * value_dim], written.

        Raises:
            EngineError: Drafted rows without a window.
        """
        classes = meta.classes
        drafted = request_count(classes.drafted)
        if drafted and (self._open is None or self._open[0] != drafted):
            raise EngineError(
                "state: advance",
                expected=f"an open window of {drafted} requests",
                given="none" if self._open is None else f"one of {self._open[0]}",
                fix="call begin_window before the step",
            )
        convolved = self._convolved[: len(inputs.mixed)]
        record = self.inputs[layer]
        kept = slice(classes.decode.requests.start, classes.prefill.requests.stop)
        for requests, where in ((classes.drafted.requests, record), (kept, None)):
            if requests.stop > requests.start:
                causal_conv(
                    inputs.mixed,
                    inputs.conv_weight,
                    self.tail[layer],
                    meta.q_start[requests.start : requests.stop + 1],
                    meta.slots[requests],
                    meta.fresh[requests],
                    convolved,
                    where,
                )
        self._advance(layer, convolved, inputs, meta, out)

    @abstractmethod
    def _advance(
        self, layer: int, mixed: Tensor, inputs: DeltaInputs, meta: StateMetadata, out: Tensor
    ) -> None:
        """The recurrence over `mixed`, the rows behind the convolution."""

    def begin_window(self, slots: Numbers, length: int) -> None:
        """Announces that the next step's drafted requests have `length` rows each that may be undone.

        Args:
            slots: Slots of those requests.
            length: 1 to `window`.

        Raises:
            EngineError: The last window is open still, or this one is too long.
        """
        if self._open is not None:
            raise EngineError("state: begin_window", expected="no open window", given="one", fix="commit it")
        most = self.inputs.shape[2]
        if not 1 <= length <= most:
            expected = f"1 to {most} rows" if most else "none: the pool has a window of 1"
            fix = "make the pool with a longer window"
            raise EngineError("state: begin_window", expected=expected, given=length, fix=fix)
        self._open = (len(slots), length)

    def commit(self, slots: Numbers, accepted: Numbers, capture: Capture | None = None) -> None:
        """Keeps the first rows of each drafted request and undoes the others.

        Costs the same number of launches however many layers there are.

        Args:
            slots: Those of `begin_window`; below zero: padding, whose `accepted` is not looked at.
            accepted: Rows that count, 0 to the window's length.
            capture: Records what is launched, to be replayed whenever as many slots are committed: what is
                launched is native and does nothing while it is recorded. Numbers of the host only.

        Raises:
            EngineError: There is no such window.
        """
        if self._open is None or self._open[0] != len(slots):
            given = "none" if self._open is None else f"one of {self._open[0]} requests"
            raise EngineError(
                "state: commit", expected=f"a window of {len(slots)} requests", given=given, fix="begin it"
            )
        self._open = None
        count = len(slots)
        if capture is None:
            self._keep(self._as_tensor(slots, 0), self._as_tensor(accepted, 1))
            return
        assert self._staged_here is not None, "what is native runs on a CPU"
        self._staged_here[0, :count], self._staged_here[1, :count] = slots, accepted
        program = self._programs.get(count)
        if program is None:
            staged = self._staged[0, :count], self._staged[1, :count]
            program = self._programs[count] = capture(lambda: self._keep(*staged))
        program()

    def _keep(self, slots: Tensor, accepted: Tensor) -> None:
        commit_tail(self.tail, self.inputs, slots, accepted)
        self._commit(slots, accepted)

    @abstractmethod
    def _commit(self, slots: Tensor, accepted: Tensor) -> None:
        """The recurrent states' part of `commit`."""

    def _as_tensor(self, values: Numbers, row: int) -> Tensor:
        """Numbers of the host go to a buffer of the device."""
        if isinstance(values, Tensor):
            return values
        staged = self._staged[row, : len(values)]
        if self._staged_here is None:
            staged.copy_(torch.tensor(values, dtype=torch.int32))
        else:
            self._staged_here[row, : len(values)] = values
        return staged

    @abstractmethod
    def slot_tensors(self, slot: int) -> dict[str, Tensor]:
        """Everything that the pool holds for a slot, as views; of no use to whoever is not testing."""

    @property
    def bytes_per_slot(self) -> int:
        """Memory of one slot, all layers."""
        return sum(tensor.nbytes for tensor in self.slot_tensors(0).values())

    @abstractmethod
    def snapshot(self, slot: int) -> StateSnapshot:
        """Copies the state of a slot; the slot stays as it is."""

    @abstractmethod
    def restore(self, slot: int, snapshot: StateSnapshot) -> None:
        """Puts a copy into a slot, whatever the slot held."""

    def check_integrity(self, slots: Iterable[int]) -> None:
        """Looks at slots that are in use between steps.

        Raises:
            AssertionError: A window is open, or a state or tail is not finite.
        """
        assert self._open is None, "a window is open"
        for slot in slots:
            for name in ("state", "tail"):
                tensor: Tensor = getattr(self, name)[:, slot]
                assert bool(tensor.isfinite().all()), f"{name} of slot {slot} is not finite"
