"""Batch classes: a few sizes of steps that are captured, and the rows that fill a step up to one of them.

A step of single rows (``plain[b]``) or of windows (``spec[b]``) is computed as the next larger class, with
rows at its end that belong to nobody: no slot, no place in a cache, no keys to read. Classes are of *rows of
one kind*, never of lengths: a part of a prompt that is as long as a window is no window. Knows counts and the
arrays of a step; knows no device and no model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ocrquant.engine.plan import PlanShape

__all__ = ["BATCH_SIZES", "BatchClasses", "count_accepted", "padding_of", "write_padding"]

BATCH_SIZES = (1, 2, 4, 8, 12, 16, 24, 32)
"""Requests of a captured step. Beyond them every step is of its own size, and none is captured."""

_NOBODY = -1


class BatchClasses:
    """The classes of an engine.

    Args:
        max_requests: Most requests of a step; where it is no class by itself it becomes one.
        max_window: Most rows of a window; 1 where nothing is drafted.
        sizes: Of the classes, rising; none for steps that are never filled up.
    """

    def __init__(self, max_requests: int, max_window: int, sizes: tuple[int, ...] = BATCH_SIZES) -> None:
        below = tuple(size for size in sizes if size < max_requests)
        is_last = bool(sizes) and max_requests <= sizes[-1]
        self.sizes = (*below, max_requests) if is_last else below
        self.max_window = max_window

    def pad(self, shape: PlanShape) -> PlanShape:
        """The shape that a step is computed in: its class, or its own where it is of two kinds."""
        if not self.sizes or not _is_of_one_kind(shape):
            return shape
        count = shape.drafted or shape.decode
        size = self.size_of(count)
        return self._of(size, shape.window) if size > count else shape

    def size_of(self, count: int) -> int:
        """Requests of the smallest class that holds so many; as many beyond the largest."""
        return next((size for size in self.sizes if size >= count), count)

    def has(self, shape: PlanShape) -> bool:
        """Whether a shape is that of a class."""
        return bool(self.sizes) and _is_of_one_kind(shape) and (shape.drafted or shape.decode) in self.sizes

    def shapes(self) -> Iterator[PlanShape]:
        """Every class, the largest first, so that smaller ones fit into memory that captures share."""
        for size in reversed(self.sizes):
            if self.max_window > 1:
                yield self._of(size, self.max_window)
            yield self._of(size, 0)

    def _of(self, size: int, window: int) -> PlanShape:
        drafted = size if window else 0
        return PlanShape(
            drafted=drafted,
            window=window,
            decode=size - drafted,
            prefill_rows=0,
            prefill=0,
            logit_rows=size * max(window, 1),
            images=False,
        )


def count_accepted(tokens: Tensor, chosen: Tensor, windows: int) -> Tensor:
    """Rows of each window that count: its first, and those whose tokens the rows before them chose.

    What `engine.drafting.num_accepted` is on the host, one more; reads nothing back.

    Args:
        tokens: int32, the rows of all windows first.
        chosen: int32, what was chosen behind each of these rows.
        windows: Windows, all of one length.

    Returns:
        int32 [windows].
    """
    length = len(chosen) // windows
    guesses = tokens[: len(chosen)].view(windows, length)[:, 1:]
    is_right = guesses == chosen.view(windows, length)[:, :-1]
    return 1 + is_right.int().cumprod(1).sum(1, dtype=torch.int32)


def _is_of_one_kind(shape: PlanShape) -> bool:
    return not shape.prefill and bool(shape.drafted) != bool(shape.decode)


def padding_of(shape: PlanShape) -> PlanShape:
    """The same kind of step without a single request: what a class is captured with."""
    return replace(shape, drafted=0, decode=0, logit_rows=0)


def write_padding(host: Mapping[str, npt.NDArray[np.int32]], shape: PlanShape, padded: PlanShape) -> None:
    """Fills the arrays of a step behind its own rows.

    Args:
        host: Arrays of the step by name, see `engine.arena`.
        shape: What is written already.
        padded: The class of the same kind.
    """
    requests = slice(shape.num_requests, padded.num_requests)
    rows = slice(shape.num_rows, padded.num_rows)
    each = max(padded.window, 1)
    first = shape.num_rows + each * np.arange(requests.stop - requests.start + 1, dtype=np.int32)
    host["q_start"][requests.start : requests.stop + 1] = first
    host["logit_rows"][rows] = np.arange(rows.start, rows.stop, dtype=np.int32)
    for name, value in _OF_REQUESTS.items():
        if name in host:
            host[name][requests] = value
    for name, value in _OF_ROWS.items():
        if name in host:
            host[name][..., rows] = value
    host["seed"][rows] = 0


# Without a slot nothing recurrent moves; without keys attention gives zeros; what is drawn is never read.
_OF_REQUESTS = {"slots": _NOBODY, "fresh": 0, "kv_len": 0, "page_table": 0, "drafter_page_table": 0}
_OF_ROWS = {
    "tokens": 0,
    "positions": 0,
    "places": 0,
    "slot_mapping": _NOBODY,
    "drafter_slot_mapping": _NOBODY,
    "temperature": 0,
    "top_p": 1,
    "sample_position": 0,
}
