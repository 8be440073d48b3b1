"""Linears: rows times a packed weight in bf16, FP8 or NVFP4."""

from __future__ import annotations

import torch
from torch import Tensor

from ocrquant import env
from ocrquant.formats.precision import Precision
from ocrquant.kernels.contract import Contract
from ocrquant.kernels.linear.native import linear_native
from ocrquant.kernels.linear.packed import PackedWeight, Weight, pack, unpack
from ocrquant.kernels.linear.reference import linear_reference
from ocrquant.kernels.operand import Operand
from ocrquant.kernels.selection import implementation, note_choice

__all__ = ["PackedWeight", "Weight", "linear", "pack", "unpack"]

_NATIVE = {True: (torch.bfloat16,), False: (torch.bfloat16, torch.float32)}
_ANY = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


def linear(x: Operand, weight: PackedWeight, out: Tensor, bias: Tensor | None = None) -> None:
    """See `linear_reference`.

    Raises:
        ShapeError: An argument is not as the reference says, or the operand lacks the form that the weight
            reads.
    """
    contract = Contract("linear", w=weight.in_features, n=weight.out_features)
    x.check(contract, "x")
    is_plain = _reads_plain(x, weight.precision)
    if is_plain:
        contract.require(x.plain is not None, "x", f"plain rows or {weight.precision} codes", "neither")
        assert x.plain is not None
        is_same = weight.precision is not Precision.BF16 or x.plain.dtype == weight.dtype
        contract.require(is_same, "x.plain", weight.dtype, x.plain.dtype)
        dtypes: tuple[torch.dtype, ...] | None = (x.plain.dtype, torch.float32)
    else:
        dtypes = _ANY
    contract.tensor("out", out, "R n", dtypes, strided=True)
    if bias is not None:
        contract.tensor("bias", bias, "n", dtypes)
    contract.require(weight.device == out.device, "weight", f"device {out.device}", weight.device)
    if _is_for_libraries(x.plain if is_plain else None, out):
        # Loaded here: on a CPU nobody needs it.
        from ocrquant.kernels.matmul.library import linear_gpu

        rule = linear_gpu(x, weight, out, bias)
        note_choice("linear", rule.implementation, rule.reason)
        return
    # Where plain rows are read their dtype decides, elsewhere that of the result.
    decisive = x.plain if is_plain and x.plain is not None else out
    run = implementation(
        "linear", decisive, linear_native, linear_reference, _NATIVE[is_plain], is_for_gpu=x.is_for_gpu
    )
    run(x, weight, out, bias)


def _is_for_libraries(plain: Tensor | None, out: Tensor) -> bool:
    """Whether a GPU multiplies by the table of `kernels.matmul`."""
    if out.device.type != "cuda" or env.kernels() in ("reference", "native"):
        return False
    return out.dtype in (torch.bfloat16, torch.float32) and (plain is None or plain.dtype == torch.bfloat16)


def _reads_plain(x: Operand, precision: Precision) -> bool:
    if precision is Precision.FP8:
        return x.fp8 is None
    return x.nvfp4 is None if precision is Precision.NVFP4 else True
