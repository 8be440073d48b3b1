"""What the engine asks of the machine that computes: memory, one upload and one read-back a step, captures.

The border behind which a GPU differs from a CPU. Knows no model, request or step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy.typing as npt
import torch
from torch import Tensor

from ocrquant.kernels.program import capture
from ocrquant.kernels.selection import obstacle_to_native

__all__ = ["Device", "ReadBack"]

ReadBack: TypeAlias = Callable[[int], list[npt.NDArray[Any]]]
"""Waits for the device; gives so many first rows of some tensors, valid until it is called again."""

NATIVE_DTYPES = (torch.bfloat16,)
"""Dtypes of activations that the native ops compute in; only native ops can be captured."""


class Device:
    """A CPU or a GPU.

    Args:
        torch_device: Where tensors live.
        dtype: Of activations.

    Attributes:
        torch_device: Where tensors live.
        dtype: Of activations.
        is_native: Whether compiled kernels for a CPU compute.
        can_capture: Whether a step can be recorded and replayed.
        can_capture_prompts: Whether that pays for steps that may not come again: recording costs no more than
            launching.
        obstacle: Why steps are not captured; empty where they are.
        batch_sizes: Numbers of requests that steps are filled up to, see `engine.graphs`; none where a
            capture costs so little that every number has its own.
        reads_host_memory: Whether it computes on what the host writes, so that there is nothing to upload.
        commits_in_step: Whether a step itself counts the guesses that it accepts and keeps their states, so
            that nothing more goes to the device.
    """

    batch_sizes: tuple[int, ...] = ()
    commits_in_step: bool = False

    def __init__(self, torch_device: torch.device, dtype: torch.dtype) -> None:
        self.torch_device = torch_device
        self.dtype = dtype
        self.obstacle = obstacle_to_native(torch_device, dtype, NATIVE_DTYPES)
        self.is_native = self.can_capture = not self.obstacle
        self.reads_host_memory = torch_device.type == "cpu"
        self.can_capture_prompts = self.can_capture and self.reads_host_memory

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
        """Memory that is not initialised, in the dtype of activations when none is named."""
        return torch.empty(shape, dtype=dtype or self.dtype, device=self.torch_device)

    def upload(self, host: Tensor, target: Tensor) -> None:
        """Copies a host tensor into a device tensor of the same shape and type, without waiting on a GPU."""
        target.copy_(host, non_blocking=True)

    def read_back(self, *tensors: Tensor) -> ReadBack:
        """What reads the first rows of some tensors, made once for tensors that outlive every step.

        Args:
            tensors: Their memory stays where it is. On a CPU they are read where they lie.
        """
        if self.torch_device.type != "cpu":
            return lambda count: [tensor[:count].to("cpu", copy=True).numpy() for tensor in tensors]
        arrays = [tensor.numpy() for tensor in tensors]
        return lambda count: [array[:count] for array in arrays]

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """What does `work` again whenever it is called; where nothing can be captured, `work` itself.

        Args:
            work: Launches native ops on memory that stays where it is; nothing else in it is repeated.
        """
        if not self.can_capture:
            return work
        with capture(work) as program:
            work()
        return program.run
