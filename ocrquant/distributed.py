"""Several processes that share one run: who does what, and what all of them know afterwards.

``torchrun --nproc-per-node N`` starts them and tells each its rank. Work is dealt out in units that depend on
the recipe alone, never on the number of processes, and results are put together in the order of the units, so
that N processes write the bytes of one. Knows ranks and messages; knows no work.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from ocrquant.errors import EnvironmentVariableError

__all__ = ["Ranks", "ranks"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ranks:
    """The processes of a run.

    Attributes:
        index: This one, from 0.
        count: How many there are.
    """

    index: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process writes artefacts and draws progress."""
        return self.index == 0

    def share(self, units: Sequence[T]) -> list[T]:
        """The units that are this process's to do: every `count`-th one, so that sizes even out."""
        return list(units[self.index :: self.count])

    def gather(self, value: T) -> list[T]:
        """The values of all processes by rank, on every one of them; all have to call it."""
        if self.count == 1:
            return [value]
        import torch.distributed as dist

        found: list[T | None] = [None] * self.count
        dist.all_gather_object(found, value)
        return found  # type: ignore[return-value]  # every place is filled

    def wait(self) -> None:
        """Returns when all processes have come here."""
        self.gather(None)


@cache
def ranks() -> Ranks:
    """The processes that ``torchrun`` started, or this one alone.

    The first call joins them (over gloo, which moves Python objects between CPUs whatever device does the
    work).

    Raises:
        EnvironmentVariableError: RANK or WORLD_SIZE is there without the other, or is no such number.
    """
    names = ("RANK", "WORLD_SIZE")
    given = {name: os.environ[name] for name in names if name in os.environ}
    if not given:
        return Ranks()
    try:
        index, count = (int(given[name]) for name in names)
    except (KeyError, ValueError) as error:
        raise EnvironmentVariableError(
            " and ".join(names),
            expected="whole numbers, both set by torchrun",
            given=", ".join(f"{name}={value}" for name, value in given.items()),
            fix="start with torchrun, or unset them",
        ) from error
    if count > 1:
        import torch.distributed as dist

        dist.init_process_group("gloo", rank=index, world_size=count)
    return Ranks(index, count)
