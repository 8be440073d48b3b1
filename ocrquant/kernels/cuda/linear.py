"""A few bf16 rows times a weight in NVFP4 or FP8 on a GPU, by kernels that read the weight once.

For decoding: up to sixteen rows cost the time that the weight takes to come from memory. More rows are taken
sixteen at a time, which a library's product does better. Equals `linear_reference` up to the order of sums.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from ocrquant.formats.nvfp4 import NVFP4Weight
from ocrquant.formats.precision import Precision
from ocrquant.formats.weights import FP8Weight
from ocrquant.kernels.contract import Contract
from ocrquant.kernels.cuda.arguments import LinearArgs
from ocrquant.kernels.cuda.library import run
from ocrquant.kernels.linear.packed import PackedWeight, stored_form

__all__ = ["WIDTH_MULTIPLES", "small_linear", "takes_linear"]

WIDTH_MULTIPLES: Mapping[Precision, int] = MappingProxyType({Precision.NVFP4: 32, Precision.FP8: 16})
"""What a weight's inputs must be a multiple of: the codes of one load."""

_KINDS = (torch.bfloat16, torch.float32)
_LOAD_BYTES = 16


def takes_linear(weight: PackedWeight) -> bool:
    """Whether these kernels multiply with a weight."""
    multiple = WIDTH_MULTIPLES.get(weight.precision)
    return multiple is not None and weight.in_features % multiple == 0


def small_linear(x: Tensor, weight: PackedWeight, out: Tensor, bias: Tensor | None = None) -> None:
    """Writes ``x @ weight.T + bias``, rounded once; see `linear_reference`.

    Args:
        x: bf16 [R, w], rows may be strided by a multiple of 8.
        weight: [n, w], packed for the device of x: NVFP4, w a multiple of 32, or FP8, w a multiple of 16.
        out: bf16 or float32 [R, n]; rows may be strided.
        bias: bf16 or float32 [n], or None.

    Raises:
        ShapeError: An argument is not as described.
        DeviceError: The kernels cannot run on the device of x.
    """
    contract = Contract("small_linear", w=weight.in_features, n=weight.out_features)
    contract.tensor("x", x, "R w", torch.bfloat16, strided=True)
    contract.tensor("out", out, "R n", _KINDS, strided=True)
    if bias is not None:
        contract.tensor("bias", bias, "n", _KINDS)
    wanted = ", ".join(f"{kind} of a multiple of {size} inputs" for kind, size in WIDTH_MULTIPLES.items())
    given = f"{weight.precision} of {weight.in_features}"
    contract.require(takes_linear(weight), "weight", wanted, given)
    is_wide = x.data_ptr() % _LOAD_BYTES == 0 and (x.stride(0) % 8 == 0 or len(x) <= 1)
    contract.require(is_wide, "x", "rows at multiples of 16 bytes", f"a stride of {x.stride(0)}")
    contract.require(weight.device == x.device, "weight", f"device {x.device}", weight.device)
    stored, channels = stored_form(weight), weight.channel_scale
    assert isinstance(stored, FP8Weight | NVFP4Weight), "of one of the two precisions"
    assert channels is not None, "a quantized weight has it"
    is_fp8 = isinstance(stored, FP8Weight)
    arguments = LinearArgs(
        x=x.data_ptr(),
        codes=stored.codes.data_ptr() if isinstance(stored, FP8Weight) else stored.packed.data_ptr(),
        block_scale=None if isinstance(stored, FP8Weight) else stored.block_scale.data_ptr(),
        channel_scale=channels.data_ptr(),
        bias=None if bias is None else bias.data_ptr(),
        out=out.data_ptr(),
        x_stride=x.stride(0) if len(x) > 1 else weight.in_features,
        out_stride=out.stride(0),
        rows=len(x),
        inputs=weight.in_features,
        outputs=weight.out_features,
        is_float=out.dtype == torch.float32,
        is_bias_float=bias is not None and bias.dtype == torch.float32,
    )
    run("linear_fp8" if is_fp8 else "linear_nvfp4", x.device, ctypes.byref(arguments))
