"""What an evaluation has found so far: batch by batch on the disk, by arm and page in memory.

Knows the journal's records. Does not know how a batch is run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ocrquant.artifacts import ArmName, Journal, RuntimeRecord

__all__ = ["FoundOutputs"]


class FoundOutputs:
    """Everything that the journal holds.

    Args:
        journal: Of the batches.

    Attributes:
        texts: What an arm read on a page: ``text``, ``num_tokens`` and ``finished``.
        divergences: KL of an arm from bf16 summed over the answer of a page; None where it is not finite.
        runtimes: What computed each arm.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.texts: dict[tuple[ArmName, str], dict[str, Any]] = {}
        self.divergences: dict[tuple[ArmName, str], float | None] = {}
        self.runtimes: dict[ArmName, RuntimeRecord] = {}
        self._done: set[tuple[str, ArmName, int]] = set()
        for record in journal.read():
            self._take(record)

    @property
    def num_pages(self) -> int:
        """Pages of all finished steps, each arm and step counted."""
        return len(self.texts) + len(self.divergences)

    def todo(self, step: str, arm: ArmName, num_batches: int) -> list[int]:
        """Numbers of the batches that are left."""
        return [number for number in range(num_batches) if (step, arm, number) not in self._done]

    def add(self, step: str, arm: ArmName, batch: int, pages: Mapping[str, Any], **more: object) -> None:
        """Puts a finished batch on the disk."""
        record = {"step": step, "arm": arm, "batch": batch, "pages": pages, **more}
        self._journal.append(record)
        self._take(record)

    def _take(self, record: Mapping[str, Any]) -> None:
        target: dict[tuple[ArmName, str], Any] = self.texts if record["step"] == "text" else self.divergences
        target.update({(record["arm"], page): values for page, values in record["pages"].items()})
        if "runtime" in record:
            self.runtimes.setdefault(record["arm"], RuntimeRecord(**record["runtime"]))
        self._done.add((record["step"], record["arm"], record["batch"]))
