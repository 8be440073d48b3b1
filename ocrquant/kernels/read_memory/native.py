"""The call into csrc/cpu/read_memory."""

from __future__ import annotations

from torch import Tensor

from ocrquant.kernels.extension import extension


def read_memory_native(data: Tensor, out: Tensor) -> None:
    """See `read_memory_reference`; on a CPU."""
    native = extension()
    assert native is not None, "selection answers for it"
    native.read_memory(data.data_ptr(), data.numel(), out.data_ptr())
