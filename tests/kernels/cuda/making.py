"""What the tests of the CUDA kernels share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from ocrquant.kernels.cuda import library, missing_reason

needs_emulation = pytest.mark.skipif(bool(missing_reason("cpu")), reason=missing_reason("cpu") or "compiled")
needs_gpu = pytest.mark.skipif(bool(missing_reason("cuda")), reason=missing_reason("cuda") or "there is one")


@contextmanager
def _emulating(**how: bool) -> Iterator[None]:
    emulated = library("cpu")
    emulated.emulate(**how)
    try:
        yield
    finally:
        emulated.emulate()


def backwards() -> AbstractContextManager[None]:
    """Emulated threads of a block run from the last to the first: other results, if a barrier is missing."""
    return _emulating(is_backwards=True)


def without_barriers() -> AbstractContextManager[None]:
    """Emulated threads of a block do not wait for one another: a fault in every kernel that has a barrier."""
    return _emulating(ignores_barriers=True)
