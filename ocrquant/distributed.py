"""Several processes that share one run: who does what, and what all of them know afterwards.

``torchrun --nproc-per-node N`` starts them and tells each its rank. Work is dealt out in units that depend on
the recipe alone, never on the number of processes, and results are put together in the order of the units, so
that N processes write the bytes of one. An error of one process ends all of them. Knows ranks and messages;
knows no work.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from ocrquant.errors import EnvironmentVariableError, OcrQuantError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Ranks", "is_first_process", "local_index", "ranks"]

T = TypeVar("T")

_PATIENCE = timedelta(days=7)
"""How long a process waits for the others. One that ends is noticed at once, so this need not be short."""

_SHARED = "is_shared"
"""Attribute of an error that all processes have."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """What a process sends in place of what the others wait for."""

    error: Exception


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

    def share_by_cost(self, costs: Sequence[float]) -> list[int]:
        """Numbers of the units that are this process's to do, dealt so that the sums of costs even out.

        The dearest unit goes first, each to whom has least (Graham, "Bounds on multiprocessing timing
        anomalies", 1969).

        Args:
            costs: What each unit costs, in any unit of measure.
        """
        sums, owners = [0.0] * self.count, [0] * len(costs)
        for number in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
            owners[number] = min(range(self.count), key=lambda rank: (sums[rank], rank))
            sums[owners[number]] += costs[number]
        return [number for number, owner in enumerate(owners) if owner == self.index]

    def gather(self, value: T) -> list[T]:
        """The values of all processes by rank, on every one of them; all have to call it.

        Raises:
            Exception: That of another process which left `together` by it.
        """
        if self.count == 1:
            return [value]
        return self._exchange(value)

    def _exchange(self, value: Any) -> list[Any]:
        import torch.distributed as dist

        found: list[Any] = [None] * self.count
        dist.all_gather_object(found, value)
        for item in found:
            if isinstance(item, _Failure):
                setattr(item.error, _SHARED, True)
                raise item.error
        return found

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replaces tensors by their means over all processes, which hold tensors of the same shapes.

        Args:
            tensors: float32, on any device; changed in place.
        """
        if self.count == 1 or not tensors:
            return
        import torch
        import torch.distributed as dist

        flat = torch.cat([tensor.flatten().cpu() for tensor in tensors])
        dist.all_reduce(flat)
        flat /= self.count
        for tensor, mean in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
            tensor.copy_(mean.view_as(tensor))

    def wait(self) -> None:
        """Returns when all processes have come here."""
        self.gather(None)

    @contextmanager
    def first_goes_ahead(self) -> Iterator[None]:
        """The first process goes through a ``with`` block before the others do; all have to come to it."""
        if not self.is_first:
            self.wait()
        yield
        if self.is_first:
            self.wait()

    @contextmanager
    def together(self) -> Iterator[None]:
        """All processes leave a ``with`` block in the same way: when all are done, or by the error of one.

        Whatever a process waits for inside is answered by that error. Errors of other kinds than ours cross
        over as their text.
        """
        try:
            yield
            self.wait()
        except Exception as error:
            if self.count == 1 or hasattr(error, _SHARED):
                raise
            portable = (
                error if isinstance(error, OcrQuantError) else RuntimeError(f"rank {self.index}: {error!r}")
            )
            self._exchange(_Failure(portable))
            raise


def is_first_process() -> bool:
    """Whether this process speaks to the user; asks nobody, so that it holds before the processes joined."""
    return os.environ.get("RANK", "0") == "0"


def local_index() -> int:
    """The place of this process among those on its machine: the GPU that it uses."""
    return int(os.environ.get("LOCAL_RANK", "0"))


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

        dist.init_process_group("gloo", rank=index, world_size=count, timeout=_PATIENCE)
        # Its threads have to be joined before the interpreter goes: static destructors may abort on them.
        atexit.register(dist.destroy_process_group)
    return Ranks(index, count)
