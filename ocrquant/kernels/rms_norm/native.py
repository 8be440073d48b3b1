"""The call into csrc/cpu/rms_norm."""

from __future__ import annotations

from torch import Tensor

from ocrquant.kernels.emit import addresses
from ocrquant.kernels.extension import extension
from ocrquant.kernels.operand import Operand
from ocrquant.kernels.rms_norm.reference import Rule


def rms_norm_native(
    x: Tensor, weight: Tensor, eps: float, out: Operand, rule: Rule, delta: Tensor | None = None
) -> None:
    """See `rms_norm_reference`; bf16 on a CPU."""
    native = extension()
    assert native is not None, "selection answers for it"
    change, stride = (0, 0) if delta is None else (delta.data_ptr(), delta.stride(0))
    pointers = (x.data_ptr(), change, weight.data_ptr(), addresses(out))
    native.rms_norm(*pointers, *x.shape, x.stride(0), stride, eps, rule == "unit")
