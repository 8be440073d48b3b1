"""What was measured so far, by all processes of a run: in memory, and in a journal for each of them.

A process reads all journals when it begins, so that it does not matter how many wrote them, and appends to
its own. Between two exchanges the processes decide nothing by what they hold. Knows names and sums by page;
does not know what was measured.
"""

from __future__ import annotations

from collections.abc import Sequence

from ocrquant.artifacts import PartialStage
from ocrquant.distributed import Ranks

__all__ = ["Records", "deal"]


class Records:
    """Lists of numbers by key.

    Args:
        partial: What the stage has done so far.
        name: Of the journals.
        here: The processes; all of them have to come here together, and to each `exchange`.
    """

    def __init__(self, partial: PartialStage, name: str, here: Ranks) -> None:
        self._here = here
        self._own = partial.journal(f"{name}-{here.index}")
        self._values: dict[str, list[float]] = {}
        self._new: list[dict[str, list[float]]] = []
        for journal in partial.journals(f"{name}-"):
            for record in journal.read():
                self._values |= record
        here.wait()  # nobody appends before all have read

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def __getitem__(self, key: str) -> list[float]:
        return self._values[key]

    def add(self, found: dict[str, list[float]]) -> None:
        """Keeps what one step found; after a kill it is there as a whole or not at all.

        Raises:
            OutputError: The journal cannot be written or the disk is full.
        """
        self._own.append(found)
        self._new.append(found)
        self._values |= found

    def exchange(self) -> None:
        """Gives every process what the others found."""
        for records in self._here.gather(self._new):
            for record in records:
                self._values |= record
        self._new = []


def deal(costs: Sequence[float], here: Ranks) -> list[int]:
    """Numbers of the steps that are this process's to do: a run of neighbours of about equal cost in all.

    Neighbours share a batch, which then goes through the model in few processes.

    Args:
        costs: What each step costs, in any unit.
        here: The processes.
    """
    total, before, mine = sum(costs), 0.0, []
    for number, cost in enumerate(costs):
        middle = before + cost / 2
        before += cost
        if min(here.count - 1, int(here.count * middle / total)) == here.index:
            mine.append(number)
    return mine
