"""Tensors that hold the weights of all experts of a layer, as several published models store them.

``PREFIX.gate_up_proj`` [experts, 2 inner, hidden] holds the gate of each expert above its up projection,
``PREFIX.down_proj`` [experts, hidden, inner] the rest. Servers and `transformers` read the same weights
expert by expert too (``PREFIX.3.gate_proj.weight``), and quantized ones in no other way. Which tensors these
are follows from two names that belong together and from shapes that fit each other. Reads no tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["StackedWeight", "stacked_weights"]

GATE_UP, DOWN = "gate_up_proj", "down_proj"


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
    """

    prefix: str
    stack: str
    expert: int
    first: int
    rows: int
    columns: int

    @property
    def shape(self) -> tuple[int, int]:
        """``(out, in)`` of the weight."""
        return self.rows, self.columns


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
        if gate_up != (experts, 2 * inner, hidden):
            continue
        for expert in range(experts):
            rows = {
                "gate_proj": StackedWeight(prefix, name, expert, 0, inner, hidden),
                "up_proj": StackedWeight(prefix, name, expert, inner, inner, hidden),
                DOWN: StackedWeight(prefix, down_name, expert, 0, hidden, inner),
            }
            found |= {f"{prefix}.{expert}.{part}.weight": weight for part, weight in rows.items()}
    return found
