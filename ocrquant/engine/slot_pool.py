"""State slots by number.

Knows integers; what lies in a slot is not its concern. Slot 0 belongs to nobody: rows that only fill
up a step may point at it.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["NULL_SLOT", "SlotPool"]

NULL_SLOT = 0


class SlotPool:
    """Slots 1 to `num_slots`.

    Args:
        num_slots: How many can be taken.
    """

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._free = list(range(num_slots, 0, -1))

    @property
    def num_free(self) -> int:
        """Slots that nobody has."""
        return len(self._free)

    @property
    def free_slots(self) -> tuple[int, ...]:
        """Numbers of the slots that nobody has; their content means nothing."""
        return tuple(self._free)

    def take(self) -> int:
        """A free slot; there must be one."""
        assert self._free, "whoever takes a slot has asked for num_free before"
        return self._free.pop()

    def give(self, slot: int) -> None:
        """Makes a slot free."""
        assert NULL_SLOT < slot <= self.num_slots, f"slot {slot} is none that can be given"
        assert slot not in self._free, f"slot {slot} is free already"
        self._free.append(slot)

    def check_integrity(self, held: Iterable[int]) -> None:
        """Compares the free slots with those that are held.

        Raises:
            AssertionError: A slot is lost, held twice, or both free and held.
        """
        everything = sorted([*held, *self._free])
        assert everything == list(range(1, self.num_slots + 1)), "slots are lost, or held twice"
