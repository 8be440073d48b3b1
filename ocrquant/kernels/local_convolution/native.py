"""The call into csrc/cpu/local_convolution."""

from __future__ import annotations

from torch import Tensor

from ocrquant.kernels.extension import extension


def local_convolution_native(
    y: Tensor, base: Tensor, added: Tensor, block: int, side: int, out: Tensor
) -> None:
    """See `local_convolution_reference`; bf16 on a CPU."""
    native = extension()
    assert native is not None, "selection answers for it"
    rows, width = y.shape
    taps, groups = added.shape[2:]
    native.local_convolution(
        y.data_ptr(),
        base[side].data_ptr(),
        added[:, side].data_ptr(),
        out.data_ptr(),
        (rows, width, block, taps, width // groups, added.stride(0)),
    )
