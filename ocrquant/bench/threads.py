"""Threads of torch and of the native kernels together, for as long as something is measured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ocrquant.kernels.extension import extension

__all__ = ["use_threads"]


@contextmanager
def use_threads(count: int | None) -> Iterator[None]:
    """Sets both, and puts back what was before; None leaves both as they are."""
    native = extension()
    before = torch.get_num_threads(), None if native is None else native.num_threads()
    try:
        if count is not None:
            torch.set_num_threads(count)
            if native is not None:
                native.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(before[0])
        if native is not None:
            native.set_num_threads(before[1])
