"""Scratch rows of a model: made once for the largest step, then handed out as slices.

All layers of a model run one after another, so layers that name the same buffer share it. Knows rows, widths
and the forms of operands. Does not know what is written where.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ocrquant.errors import ShapeError
from ocrquant.formats.precision import NVFP4_BLOCK_SIZE
from ocrquant.kernels.operand import Operand, OperandSpec

__all__ = ["OperandSlot", "PartSlot", "Scratch", "Slot", "Workspace"]

# Decode steps take every number of rows up to the batch, and each of them again and again; parts of prompts
# take any number. A view of a model with 32 layers is some 400 small objects.
_MAX_VIEWS = 64


@dataclass(frozen=True, slots=True)
class Slot:
    """A buffer of a workspace; see ``Workspace.slot``."""

    number: int


@dataclass(frozen=True, slots=True)
class PartSlot:
    """A view into a buffer of a workspace; see ``Workspace.part``."""

    number: int


@dataclass(frozen=True, slots=True)
class OperandSlot:
    """Buffers of a workspace that together are an operand; see ``Workspace.operand``."""

    number: int


@dataclass(frozen=True, slots=True)
class _Buffer:
    width: int | None  # None: one number a row
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class _Part:
    slot: Slot
    take: Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class _OperandBuffers:
    plain: Slot | None
    fp8: Slot | None
    fp8_scale: Slot | None
    nvfp4: Slot | None
    nvfp4_scale: Slot | None
    encode_scale: Tensor | None


class Scratch:
    """The first rows of every buffer of a workspace."""

    __slots__ = ("_operands", "_parts", "_tensors")

    def __init__(self, tensors: list[Tensor], parts: list[Tensor], operands: list[Operand]) -> None:
        self._tensors = tensors
        self._parts = parts
        self._operands = operands

    def rows(self, slot: Slot) -> Tensor:
        """[rows, width] of a buffer, or [rows]."""
        return self._tensors[slot.number]

    def part(self, slot: PartSlot) -> Tensor:
        """[rows, ...] of a view."""
        return self._parts[slot.number]

    def operand(self, slot: OperandSlot) -> Operand:
        """An operand of as many rows."""
        return self._operands[slot.number]


class Workspace:
    """All scratch buffers of a model.

    Args:
        dtype: Dtype of activations.
        device: Where the buffers are.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype = dtype
        self.device = device
        self.max_rows = 0
        self._names: dict[str, Slot] = {}
        self._buffers: list[_Buffer] = []
        self._parts: list[_Part] = []
        self._operands: list[_OperandBuffers] = []
        self._tensors: list[Tensor] = []
        self._views: OrderedDict[int, Scratch] = OrderedDict()

    @property
    def num_bytes(self) -> int:
        """Bytes of all buffers."""
        return sum(tensor.nbytes for tensor in self._tensors)

    def slot(self, name: str, width: int | None, dtype: torch.dtype | None = None) -> Slot:
        """A buffer by its name; everyone who says the same name gets the same one.

        Args:
            name: What it holds.
            width: Elements of a row; None for a plain vector.
            dtype: That of activations when left out.
        """
        wanted = _Buffer(width, dtype or self.dtype)
        if name not in self._names:
            self._names[name] = Slot(len(self._buffers))
            self._buffers.append(wanted)
        found = self._buffers[self._names[name].number]
        if found != wanted:
            raise ShapeError(f"scratch buffer {name}", expected=found, given=wanted, fix="name another")
        return self._names[name]

    def part(self, slot: Slot, take: Callable[[Tensor], Tensor]) -> PartSlot:
        """A view into a buffer, such as some of its columns or its heads.

        Args:
            slot: The buffer.
            take: From its rows to the view; must not copy.
        """
        self._parts.append(_Part(slot, take))
        return PartSlot(len(self._parts) - 1)

    def operand(self, name: str, width: int, spec: OperandSpec) -> OperandSlot:
        """An operand in exactly the forms of a specification.

        Args:
            name: What it holds; forms of operands of one name share buffers.
            width: Elements of a row.
            spec: Which forms its readers need.
        """
        packed = spec.nvfp4_encode_scale is not None
        byte = torch.uint8
        blocks = width // NVFP4_BLOCK_SIZE
        self._operands.append(
            _OperandBuffers(
                plain=self.slot(f"{name}.plain", width) if spec.plain else None,
                fp8=self.slot(f"{name}.fp8", width, byte) if spec.fp8 else None,
                fp8_scale=self.slot(f"{name}.fp8_scale", None, torch.float32) if spec.fp8 else None,
                nvfp4=self.slot(f"{name}.nvfp4", width // 2, byte) if packed else None,
                nvfp4_scale=self.slot(f"{name}.nvfp4_scale", blocks, byte) if packed else None,
                encode_scale=spec.nvfp4_encode_scale,
            )
        )
        return OperandSlot(len(self._operands) - 1)

    def reserve(self, max_rows: int) -> None:
        """Makes all buffers, for steps of at most ``max_rows`` rows; once, since captured steps write there.

        Raises:
            ShapeError: They have been made before.
        """
        if self._tensors:
            fix = "make the model anew"
            raise ShapeError("scratch buffers", expected="to be made once", given="a second time", fix=fix)
        self.max_rows = max_rows
        self._tensors = [
            torch.zeros(
                (max_rows, *(() if b.width is None else (b.width,))), dtype=b.dtype, device=self.device
            )
            for b in self._buffers
        ]

    def view(self, rows: int) -> Scratch:
        """The first rows of every buffer; made once for each number of rows, the oldest forgotten.

        Raises:
            ShapeError: There are not that many.
        """
        if (found := self._views.get(rows)) is not None:
            self._views.move_to_end(rows)
            return found
        if not 0 <= rows <= self.max_rows:
            expected = f"at most {self.max_rows} rows"
            raise ShapeError("step", expected=expected, given=rows, fix="reserve more, or cut the step")
        tensors = [tensor[:rows] for tensor in self._tensors]
        scratch = Scratch(
            tensors,
            [part.take(tensors[part.slot.number]) for part in self._parts],
            [_operand(buffers, tensors) for buffers in self._operands],
        )
        self._views[rows] = scratch
        if len(self._views) > _MAX_VIEWS:
            self._views.popitem(last=False)
        return scratch


def _operand(buffers: _OperandBuffers, tensors: list[Tensor]) -> Operand:
    def at(slot: Slot | None) -> Tensor | None:
        return None if slot is None else tensors[slot.number]

    return Operand(
        plain=at(buffers.plain),
        fp8=at(buffers.fp8),
        fp8_scale=at(buffers.fp8_scale),
        nvfp4=at(buffers.nvfp4),
        nvfp4_scale=at(buffers.nvfp4_scale),
        encode_scale=buffers.encode_scale,
    )
