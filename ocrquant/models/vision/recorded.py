"""A pass of a tower as the native calls that it is: recorded once, replayed for every batch of few patches.

A pass of pico's tower is 50 calls of 5 to 40 us, and from Python each costs some 8 us more for checks that
give the same answer every time. The recording is made for `MAX_PATCHES` rows and run on as many as a batch
has. Knows inputs and results of a pass; knows nothing of what it computes.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ocrquant.kernels.extension import extension
from ocrquant.kernels.program import Program, capture
from ocrquant.kernels.selection import obstacle_to_native
from ocrquant.models.vision.encoder import Scratch
from ocrquant.models.vision.tables import BatchTables

__all__ = ["MAX_PATCHES", "RecordedPass"]

MAX_PATCHES = 512
"""Larger batches compute so long that launching does not count; memory for them would be kept for nothing."""


class Pass(Protocol):
    """What is recorded: a `VisionTower`."""

    def scratch(self, like: Tensor, rows: int) -> Scratch:
        """Memory for so many patches."""

    def run(self, pixels: Tensor, tables: BatchTables, scratch: Scratch) -> Tensor:
        """Launches a pass, and returns where its tokens are."""


@dataclass(frozen=True, slots=True, eq=False)
class _Recording:
    """A program, and what it reads and writes; ``isa`` is the instruction set whose kernels it calls.

    The tower, whose weights it reads, owns it.
    """

    program: Program
    pixels: Tensor
    tables: BatchTables
    tokens: Tensor
    isa: str

    @classmethod
    @torch.inference_mode(False)  # its memory is written both inside that mode and outside
    def of(cls, tower: Pass, pixels: Tensor, tables: BatchTables, isa: str) -> _Recording:
        a_token = len(pixels) // tables.num_tokens
        rows = MAX_PATCHES // a_token * a_token
        own = BatchTables(
            learned=tables.learned.new_zeros((rows, tables.learned.shape[1])),
            cos=tables.cos.new_zeros((rows, tables.cos.shape[1])),
            sin=tables.sin.new_zeros((rows, tables.sin.shape[1])),
            starts=tables.starts.new_zeros(rows + 1),
            order=None if tables.order is None else tables.order.new_zeros(rows),
            num_tokens=rows // a_token,
        )
        read, scratch = pixels.new_zeros((rows, pixels.shape[1])), tower.scratch(pixels, rows)
        with capture(read, own, scratch) as program:
            tokens = tower.run(read, own, scratch)
        return cls(program, read, own, tokens, isa)

    def run(self, pixels: Tensor, tables: BatchTables) -> Tensor:
        rows, bounds = len(pixels), len(tables.starts)
        own = self.tables
        self.pixels[:rows] = pixels
        own.learned[:rows] = tables.learned
        own.cos[:rows] = tables.cos
        own.sin[:rows] = tables.sin
        own.starts[:bounds] = tables.starts
        if own.order is not None and tables.order is not None:
            own.order[:rows] = tables.order
        self.program.run_share(rows, len(self.pixels), bounds - 1)
        return self.tokens[: tables.num_tokens].clone()


class RecordedPass:
    """The recording of one tower, made at its first use; one batch at a time runs in its memory."""

    __slots__ = ("_lock", "_recording")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._recording: _Recording | None = None

    def takes(self, pixels: Tensor) -> bool:
        """Whether a batch is replayed: native ops compute it, and its patches are few."""
        return len(pixels) <= MAX_PATCHES and not obstacle_to_native(
            pixels.device, pixels.dtype, (torch.bfloat16,)
        )

    def run(self, tower: Pass, pixels: Tensor, tables: BatchTables) -> Tensor:
        """A pass over a batch that it takes.

        Args:
            tower: What is recorded, always the same.
            pixels: [R, values of a patch].
            tables: Of its patches.

        Returns:
            The tokens, memory of their own.
        """
        native = extension()
        assert native is not None, "there is no obstacle"
        with self._lock:
            isa = native.isa()
            if self._recording is None or self._recording.isa != isa:
                self._recording = _Recording.of(tower, pixels, tables, isa)
            return self._recording.run(pixels, tables)
