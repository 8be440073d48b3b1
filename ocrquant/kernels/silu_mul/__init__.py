"""SiLU of the gate times up, written as an operand."""

from __future__ import annotations

from torch import Tensor

from ocrquant.kernels.contract import Contract
from ocrquant.kernels.operand import Operand
from ocrquant.kernels.selection import implementation
from ocrquant.kernels.silu_mul.native import silu_mul_native
from ocrquant.kernels.silu_mul.reference import silu_mul_reference

__all__ = ["silu_mul"]


def silu_mul(gate_up: Tensor, out: Operand) -> None:
    """See `silu_mul_reference`.

    Raises:
        ShapeError: An argument is not as the reference says.
    """
    contract = Contract("silu_mul")
    contract.tensor("gate_up", gate_up, "R 2w", None, strided=True)
    twice = gate_up.shape[1]
    contract.require(twice % 2 == 0, "gate_up", "an even width", twice)
    contract.sizes["w"] = twice // 2
    out.check(contract, dtype=gate_up.dtype)
    run = implementation("silu_mul", gate_up, silu_mul_native, silu_mul_reference, is_for_gpu=out.is_for_gpu)
    run(gate_up, out)
