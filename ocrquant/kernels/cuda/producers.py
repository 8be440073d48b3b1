"""Producers on a GPU: rows, SiLU times up and the gated RMS norm, in every form that is wanted at once.

Each equals its reference in `kernels.<op>.reference` and `kernels.emit`: codes and scales bit for bit those
of the rounded rows. Exponentials, square roots and sums differ in their last place, so a rounded row may
differ by a step of bf16 in about one element of ten thousand. Codes of FP8 are NaN where the reference's are;
the sign of a NaN is not kept.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from ocrquant.kernels.contract import Contract
from ocrquant.kernels.cuda.arguments import OperandOut
from ocrquant.kernels.cuda.library import run
from ocrquant.kernels.operand import Operand

__all__ = ["gated_rms_norm", "quantize", "silu_mul"]

_BF16 = torch.bfloat16
_HEADS = (8, 16, 32, 64, 128, 256)


def _structure(out: Operand, rows: int, width: int) -> OperandOut:
    """An operand as the launchers take it."""
    is_swizzled = out.nvfp4_swizzled is not None
    names = ("plain", "fp8", "fp8_scale", "fp8_static", "nvfp4", "encode_scale")
    tensors = {name: getattr(out, name) for name in names}
    tensors["nvfp4_scale"] = out.nvfp4_swizzled if is_swizzled else out.nvfp4_scale
    addresses = {name: None if tensor is None else tensor.data_ptr() for name, tensor in tensors.items()}
    return OperandOut(**addresses, rows=rows, width=width, is_swizzled=is_swizzled)


def quantize(x: Tensor, out: Operand) -> None:
    """Writes rows into every form of an operand; see `quantize_reference`.

    Args:
        x: bf16 [R, w], row stride free.
        out: R rows of width w, any forms; its plain form may be x itself.

    Raises:
        ShapeError: An argument is not as described.
        DeviceError: The kernels cannot run on the device of x, see `missing_reason`.
    """
    contract = Contract("quantize")
    contract.tensor("x", x, "R w", _BF16, strided=True)
    out.check(contract, dtype=_BF16)
    structure = _structure(out, *x.shape)
    if structure.plain == x.data_ptr():
        structure.plain = None  # the rows lie there already, and a kernel reads them as what nobody writes
    run("quantize", x.device, x.data_ptr(), x.stride(0), ctypes.byref(structure))


def silu_mul(gate_up: Tensor, out: Operand) -> None:
    """Writes ``round(round(silu(gate)) * up)``; see `silu_mul_reference`.

    Args:
        gate_up: bf16 [R, 2 w], row stride free; gate is the first half.
        out: R rows of width w, any forms.

    Raises:
        ShapeError: An argument is not as described.
        DeviceError: The kernels cannot run on the device of gate_up.
    """
    contract = Contract("silu_mul")
    contract.tensor("gate_up", gate_up, "R 2w", _BF16, strided=True)
    rows, twice = gate_up.shape
    contract.require(twice % 2 == 0, "gate_up", "an even width", twice)
    contract.sizes["w"] = twice // 2
    out.check(contract, dtype=_BF16)
    structure = _structure(out, rows, twice // 2)
    run("silu_mul", gate_up.device, gate_up.data_ptr(), gate_up.stride(0), ctypes.byref(structure))


def gated_rms_norm(o: Tensor, z: Tensor, weight: Tensor, eps: float, out: Operand) -> None:
    """Normalises each head, gates it and writes it; see `gated_rms_norm_reference`.

    Args:
        o: bf16 [R, H V], row stride free.
        z: bf16 [R, H V], row stride free.
        weight: float32 [V], V a power of two from 8 to 256.
        eps: Added to the mean square.
        out: R rows of width H V, any forms.

    Raises:
        ShapeError: An argument is not as described.
        DeviceError: The kernels cannot run on the device of o.
    """
    contract = Contract("gated_rms_norm")
    contract.tensor("weight", weight, "V", torch.float32)
    contract.tensor("o", o, "R w", _BF16, strided=True)
    contract.tensor("z", z, "R w", _BF16, strided=True)
    head, width = len(weight), o.shape[1]
    contract.require(head in _HEADS, "weight", f"V of {_HEADS}", head)
    contract.require(width % head == 0, "o", f"a width that is a multiple of V = {head}", width)
    out.check(contract, dtype=_BF16)
    structure = _structure(out, *o.shape)
    rows = (o.data_ptr(), o.stride(0), z.data_ptr(), z.stride(0))
    run("gated_rms_norm", o.device, *rows, weight.data_ptr(), head, eps, ctypes.byref(structure))
