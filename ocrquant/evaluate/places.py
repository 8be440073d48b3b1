"""Where in the model a group or a linear sits, and the table that pictures draw groups in.

Knows the blocks and kinds that groups state, and for linears names such as ``layers.3.mlp.down_proj``. Knows
no model.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ocrquant.artifacts import GroupRecord

__all__ = ["Place", "PlaceGrid", "place_of"]

_IN_BLOCK = re.compile(r"(?:^|\.)layers\.(\d+)\.(.+)$")


@dataclass(frozen=True, slots=True)
class Place:
    """Position of a group or linear.

    Attributes:
        block: Index of the decoder layer; None outside of them.
        role: What it does in a layer, such as ``mlp.down``.
    """

    block: int | None
    role: str


def place_of(name: str) -> Place:
    """Reads the position from the name of a linear, where nothing else is known of it."""
    found = _IN_BLOCK.search(name)
    return Place(int(found[1]), found[2]) if found else Place(None, name.rpartition(".")[2])


class PlaceGrid:
    """A table of groups: one row a role, one column a layer, and one more for groups outside the layers.

    The role of a group is its kind; where a layer holds several groups of one kind, such as experts, the name
    tells them apart.

    Args:
        groups: Groups in the order of the model.

    Attributes:
        roles: Row labels from the top, in order of appearance; those outside of layers go last.
        columns: Column labels.
    """

    def __init__(self, groups: Sequence[GroupRecord]) -> None:
        count = Counter((group.block, group.kind) for group in groups)
        places = {
            group.name: Place(
                group.block,
                group.kind if count[group.block, group.kind] == 1 else place_of(group.name).role,
            )
            for group in groups
        }
        inside = [place for place in places.values() if place.block is not None]
        outside = [place for place in places.values() if place.block is None]
        self.roles = list(dict.fromkeys(place.role for place in [*inside, *outside]))
        blocks = sorted({place.block for place in inside if place.block is not None})
        self.columns = [str(block) for block in blocks] + ([""] if outside else [])
        column_of: dict[int | None, int] = {block: index for index, block in enumerate(blocks)}
        column_of[None] = len(blocks)
        self._cells = {
            name: (self.roles.index(place.role), column_of[place.block]) for name, place in places.items()
        }

    def cell(self, name: str) -> tuple[int, int]:
        """Row and column of a group."""
        return self._cells[name]
