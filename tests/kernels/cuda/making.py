"""What the tests of the CUDA kernels share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ocrquant.kernels.cuda import library, missing_reason

needs_emulation = pytest.mark.skipif(bool(missing_reason("cpu")), reason=missing_reason("cpu") or "compiled")
needs_gpu = pytest.mark.skipif(bool(missing_reason("cuda")), reason=missing_reason("cuda") or "there is one")


@contextmanager
def backwards() -> Iterator[None]:
    """Emulated threads of a block run from the last to the first: other results, if a barrier is missing."""
    emulated = library("cpu")
    emulated.emulate_backwards(True)
    try:
        yield
    finally:
        emulated.emulate_backwards(False)
