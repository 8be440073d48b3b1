"""Residual sum and RMS norm, written as an operand."""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor

from ocrquant.kernels.contract import Contract
from ocrquant.kernels.operand import Operand
from ocrquant.kernels.rms_norm.native import rms_norm_native
from ocrquant.kernels.rms_norm.reference import Rule, rms_norm_reference
from ocrquant.kernels.selection import implementation

__all__ = ["rms_norm"]


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, out: Operand, rule: Rule, delta: Tensor | None = None
) -> None:
    """See `rms_norm_reference`.

    Raises:
        ShapeError: An argument is not as the reference says.
    """
    contract = Contract("rms_norm")
    contract.require(rule in get_args(Rule), "rule", " or ".join(get_args(Rule)), rule)
    contract.tensor("x", x, "R w", None, strided=True)
    contract.tensor("weight", weight, "w", torch.float32)
    out.check(contract, dtype=x.dtype)
    if delta is not None:
        contract.tensor("delta", delta, "R w", x.dtype, strided=True)
    run = implementation("rms_norm", x, rms_norm_native, rms_norm_reference, is_for_gpu=out.is_for_gpu)
    run(x, weight, eps, out, rule, delta)
