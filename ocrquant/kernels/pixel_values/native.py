"""The call into csrc/cpu/pixel_values."""

from __future__ import annotations

from torch import Tensor

from ocrquant.kernels.extension import extension


def pixel_values_native(codes: Tensor, levels: Tensor, out: Tensor) -> None:
    """See `pixel_values_reference`; bf16 on a CPU."""
    native = extension()
    assert native is not None, "selection answers for it"
    native.pixel_values(codes.data_ptr(), levels.data_ptr(), out.data_ptr(), *out.shape)
