"""A GPU as the engine sees it: graphs in a shared pool, one copy in and one out a step, no other wait.

What a step launches is captured once for each batch class, before anybody waits for an answer, with rows that
belong to nobody. A step that would make the host wait inside cannot be captured: it is launched kernel by
kernel, and `Device.obstacle` says why. Knows torch's graphs; knows no model, request or step.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from ocrquant.engine.device import Device, ReadBack
from ocrquant.engine.graphs import BATCH_SIZES

__all__ = ["CudaDevice", "no_waiting", "noted_waits", "open_device"]

_WAIT = "synchronizing"
"""In every word of torch about a host that waits for a GPU."""


def open_device(place: torch.device, dtype: torch.dtype) -> Device:
    """The device of an engine."""
    return CudaDevice(place, dtype) if place.type == "cuda" else Device(place, dtype)


@contextmanager
def no_waiting(place: torch.device) -> Iterator[None]:
    """Refuses, inside the block, whatever makes the host wait for a GPU (``torch.cuda`` calls it a sync).

    Raises:
        RuntimeError: By torch, where something does.
    """
    if place.type != "cuda":
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def noted_waits(work: Callable[[], None]) -> list[str]:
    """Runs `work` and gives what torch says of waits inside; empty where it can be captured."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            work()
    finally:
        torch.cuda.set_sync_debug_mode(before)
    return [str(one.message).splitlines()[0] for one in said if _WAIT in str(one.message)]


class CudaDevice(Device):
    """A GPU.

    Args:
        torch_device: Where tensors live, ``cuda:N``.
        dtype: Of activations.
    """

    batch_sizes = BATCH_SIZES
    commits_in_step = True

    def __init__(self, torch_device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(torch_device, dtype)
        self.obstacle, self.can_capture = "", True
        self.can_capture_prompts = False
        self._pool: Any = None

    def read_back(self, *tensors: Tensor) -> ReadBack:
        """See `Device.read_back`: copies into pinned memory and waits for that alone."""
        landings = [torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for t in tensors]
        arrays = [landing.numpy() for landing in landings]

        def read(count: int) -> list[npt.NDArray[Any]]:
            for tensor, landing in zip(tensors, landings, strict=True):
                landing[:count].copy_(tensor[:count], non_blocking=True)
            event = torch.cuda.Event()
            event.record()
            event.synchronize()
            return [array[:count] for array in arrays]

        return read

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """See `Device.capture`. `work` runs here too, so it must be a step of rows that belong to nobody."""
        stream = torch.cuda.Stream(self.torch_device)
        stream.wait_stream(torch.cuda.current_stream(self.torch_device))
        with torch.cuda.stream(stream):
            work()  # compiles and allocates, which may wait
            waits = noted_waits(work)
        torch.cuda.current_stream(self.torch_device).wait_stream(stream)
        if waits:
            self.obstacle = waits[0]
            return work
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=stream):
            work()
        if self._pool is None:
            self._pool = graph.pool()
        return graph.replay
