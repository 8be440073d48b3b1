"""Where the bytes of a loaded checkpoint are.

Counts what is really held, by walking the objects, so that a weight kept twice shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

__all__ = ["MemoryReport", "resident_bytes"]


def resident_bytes(root: object, *, but: tuple[type, ...] = ()) -> int:
    """Bytes of all tensors that an object holds, memory that several share counted once.

    Args:
        root: Where to begin; attributes, mappings and sequences are followed.
        but: Types that are passed over.
    """
    sizes: dict[int, int] = {}
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, but):
            continue
        seen.add(id(thing))
        if isinstance(thing, Tensor):
            storage = thing.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
        else:
            waiting.extend(_parts(thing))
    return sum(sizes.values())


def _parts(thing: object) -> Iterator[object]:
    if isinstance(thing, Mapping):
        yield from thing.values()
    elif isinstance(thing, list | tuple | set | frozenset):
        yield from thing
    elif type(thing).__module__.partition(".")[0] == __name__.partition(".")[0]:
        yield from getattr(thing, "__dict__", {}).values()
        names = {name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())}
        yield from (getattr(thing, name) for name in sorted(names) if hasattr(thing, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """Bytes of a runtime.

    Attributes:
        stored_bytes: All tensors of the checkpoint on disk.
        num_parameters: Numbers that its weights stand for; scales are none.
        weight_bytes: All weights in memory, packed for the kernels.
        kv_bytes: Keys and values.
        state_bytes: Recurrent states.
        scratch_bytes: Buffers of a step.
    """

    stored_bytes: int
    num_parameters: int
    weight_bytes: int
    kv_bytes: int
    state_bytes: int
    scratch_bytes: int

    @property
    def bytes_per_parameter(self) -> float:
        """Of the weights in memory."""
        return self.weight_bytes / self.num_parameters

    @property
    def weights_over_stored(self) -> float:
        """How much larger the weights are in memory than on disk, 0 for equal."""
        return self.weight_bytes / self.stored_bytes - 1.0

    def line(self) -> str:
        """One line for people."""
        mib = 1 << 20
        parts = (
            f"weights {self.weight_bytes / mib:.1f} MiB ({self.bytes_per_parameter:.3f} bytes a parameter, "
            f"{self.weights_over_stored:+.1%} of the checkpoint)",
            f"keys and values {self.kv_bytes / mib:.1f} MiB",
            f"states {self.state_bytes / mib:.1f} MiB",
            f"buffers {self.scratch_bytes / mib:.1f} MiB",
        )
        return ", ".join(parts)
