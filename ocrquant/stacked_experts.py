"""Tensors that hold the weights of all experts of a layer, as several published models store them.

``PREFIX.gate_up_proj`` [experts, 2 inner, hidden] holds the gate of each expert above its up projection,
``PREFIX.down_proj`` [experts, hidden, inner] the rest; Qwen3-VL publishes both with rows and columns
exchanged. Servers read the same weights expert by expert too (``PREFIX.3.gate_proj.weight``), and quantized
ones in no other way. Which tensors these are follows from two names that belong together and from shapes that
fit each other. Knows no file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["StackedWeight", "stacked_weights"]

GATE_UP, DOWN = "gate_up_proj", "down_proj"


class _File(Protocol):
    """What reads parts of a tensor; see `ocrquant.tensor_file`."""

    def read_rows(self, name: str, rows: Sequence[int]) -> Tensor: ...

    def read_part(self, name: str, index: int, first: int, count: int) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class StackedWeight:
    """Where the weight of one linear of one expert lies.

    Attributes:
        prefix: Module of all experts of the layer.
        stack: Name of the tensor.
        expert: Its place along the first axis.
        first: First of its rows.
        rows: How many there are.
        columns: Width of its input.
        is_turned: Whether the tensor holds columns as rows; `first` counts rows of the weight all the same.
    """

    prefix: str
    stack: str
    expert: int
    first: int
    rows: int
    columns: int
    is_turned: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """``(out, in)`` of the weight."""
        return self.rows, self.columns

    def read(self, file: _File) -> Tensor:
        """The weight [out, in] in the dtype in which it is stored, in memory of its own.

        Raises:
            OSError: The file cannot be read.
        """
        if not self.is_turned:
            return file.read_part(self.stack, self.expert, self.first, self.rows)
        turned = file.read_rows(self.stack, [self.expert])[0].T
        return turned[self.first : self.first + self.rows].clone().contiguous()


def stacked_weights(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, StackedWeight]:
    """Names that the weights of single experts would have -> where they lie; expert after expert.

    Args:
        shapes: Shape of every tensor, by name.
    """
    found: dict[str, StackedWeight] = {}
    for name, gate_up in shapes.items():
        prefix, _, leaf = name.rpartition(".")
        down_name = f"{prefix}.{DOWN}"
        down = shapes.get(down_name, ())
        if leaf != GATE_UP or len(gate_up) != 3 or len(down) != 3:
            continue
        experts, hidden, inner = down
        is_turned = gate_up == (experts, inner, 2 * hidden)
        if is_turned:
            hidden, inner = inner, hidden
        elif gate_up != (experts, 2 * inner, hidden):
            continue
        for expert in range(experts):
            rows = {
                "gate_proj": StackedWeight(prefix, name, expert, 0, inner, hidden, is_turned),
                "up_proj": StackedWeight(prefix, name, expert, inner, inner, hidden, is_turned),
                DOWN: StackedWeight(prefix, down_name, expert, 0, hidden, inner, is_turned),
            }
            found |= {f"{prefix}.{expert}.{part}.weight": weight for part, weight in rows.items()}
    return found
