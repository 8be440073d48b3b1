"""The call into csrc/cpu/layer_norm."""

from __future__ import annotations

from torch import Tensor

from ocrquant.kernels.extension import extension


def layer_norm_native(x: Tensor, weight: Tensor, bias: Tensor, eps: float, out: Tensor) -> None:
    """See `layer_norm_reference`; bf16 on a CPU."""
    native = extension()
    assert native is not None, "selection answers for it"
    pointers = (x.data_ptr(), weight.data_ptr(), bias.data_ptr(), out.data_ptr())
    native.layer_norm(*pointers, *x.shape, x.stride(0), out.stride(0), eps)
