"""The call into csrc/cpu/gelu."""

from __future__ import annotations

from torch import Tensor

from ocrquant.kernels.extension import extension
from ocrquant.kernels.gelu.reference import Form


def gelu_native(x: Tensor, out: Tensor, form: Form) -> None:
    """See `gelu_reference`; bf16 on a CPU."""
    native = extension()
    assert native is not None, "selection answers for it"
    native.gelu(x.data_ptr(), out.data_ptr(), *x.shape, x.stride(0), out.stride(0), form == "tanh")
