"""RMS norm over each head and its SiLU gate, written as an operand."""

from __future__ import annotations

import torch
from torch import Tensor

from ocrquant.kernels.contract import Contract
from ocrquant.kernels.gated_rms_norm.native import gated_rms_norm_native
from ocrquant.kernels.gated_rms_norm.reference import gated_rms_norm_reference
from ocrquant.kernels.operand import Operand
from ocrquant.kernels.selection import implementation

__all__ = ["gated_rms_norm"]


def gated_rms_norm(o: Tensor, z: Tensor, weight: Tensor, eps: float, out: Operand) -> None:
    """See `gated_rms_norm_reference`.

    Raises:
        ShapeError: An argument is not as the reference says.
    """
    contract = Contract("gated_rms_norm")
    contract.tensor("weight", weight, "V", torch.float32)
    contract.tensor("o", o, "R w", None, strided=True)
    contract.tensor("z", z, "R w", o.dtype, strided=True)
    width, head = o.shape[1], max(1, len(weight))
    contract.require(width % head == 0, "o", f"a width that is a multiple of V = {len(weight)}", width)
    out.check(contract, dtype=o.dtype)
    run = implementation(
        "gated_rms_norm", o, gated_rms_norm_native, gated_rms_norm_reference, is_for_gpu=out.is_for_gpu
    )
    run(o, z, weight, eps, out)
