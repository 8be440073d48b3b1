"""The call into csrc/cpu/gated_rms_norm."""

from __future__ import annotations

from torch import Tensor

from ocrquant.kernels.emit import addresses
from ocrquant.kernels.extension import extension
from ocrquant.kernels.operand import Operand


def gated_rms_norm_native(o: Tensor, z: Tensor, weight: Tensor, eps: float, out: Operand) -> None:
    """See `gated_rms_norm_reference`; bf16 on a CPU."""
    native = extension()
    assert native is not None, "selection answers for it"
    pointers = (o.data_ptr(), z.data_ptr(), weight.data_ptr(), addresses(out))
    sizes = (len(o), o.shape[1] // len(weight), len(weight))
    native.gated_rms_norm(*pointers, *sizes, o.stride(0), z.stride(0), eps)
