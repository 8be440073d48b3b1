"""The call into csrc/cpu/silu_mul."""

from __future__ import annotations

from torch import Tensor

from ocrquant.kernels.emit import addresses
from ocrquant.kernels.extension import extension
from ocrquant.kernels.operand import Operand


def silu_mul_native(gate_up: Tensor, out: Operand) -> None:
    """See `silu_mul_reference`; bf16 on a CPU."""
    native = extension()
    assert native is not None, "selection answers for it"
    rows, twice = gate_up.shape
    native.silu_mul(gate_up.data_ptr(), addresses(out), rows, twice // 2, gate_up.stride(0))
