"""The call into csrc/cpu/sigmoid_mul."""

from __future__ import annotations

from torch import Tensor

from ocrquant.kernels.emit import addresses
from ocrquant.kernels.extension import extension
from ocrquant.kernels.operand import Operand


def sigmoid_mul_native(x: Tensor, qg: Tensor, out: Operand) -> None:
    """See `sigmoid_mul_reference`; bf16 on a CPU."""
    native = extension()
    assert native is not None, "selection answers for it"
    rows, heads, twice = qg.shape
    strides = (x.stride(0), qg.stride(0), qg.stride(1))
    native.sigmoid_mul(x.data_ptr(), qg.data_ptr(), addresses(out), rows, heads, twice // 2, *strides)
