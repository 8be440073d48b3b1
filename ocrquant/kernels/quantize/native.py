"""The call into csrc/cpu/quantize."""

from __future__ import annotations

from torch import Tensor

from ocrquant.kernels.emit import addresses
from ocrquant.kernels.extension import extension
from ocrquant.kernels.operand import Operand


def quantize_native(x: Tensor, out: Operand) -> None:
    """See `quantize_reference`; bf16 on a CPU."""
    native = extension()
    assert native is not None, "selection answers for it"
    native.quantize(x.data_ptr(), addresses(out), *x.shape, x.stride(0))
