"""The call into csrc/cpu/linear."""

from __future__ import annotations

import torch
from torch import Tensor

from ocrquant.formats.precision import Precision
from ocrquant.kernels.extension import extension
from ocrquant.kernels.linear.packed import PackedWeight
from ocrquant.kernels.operand import Operand

# Numbers of csrc/cpu/linear/args.h.
_BF16, _FP8, _FP8_PLAIN, _NVFP4, _NVFP4_PLAIN = range(5)
_FLOATS = {None: 0, torch.bfloat16: 1, torch.float32: 2}


def linear_native(x: Operand, weight: PackedWeight, out: Tensor, bias: Tensor | None = None) -> None:
    """See `linear_reference`; plain rows in bf16, out and bias in bf16 or float32, on a CPU."""
    native = extension()
    assert native is not None, "selection answers for it"
    assert weight.panels is not None, "packed for a CPU"
    kind, rows, row_scale, encode_scale = _rows(x, weight.precision)
    native.linear(
        kind,
        weight.panels.data_ptr(),
        0 if weight.channel_scale is None else weight.channel_scale.data_ptr(),
        rows.data_ptr(),
        0 if row_scale is None else row_scale.data_ptr(),
        0 if encode_scale is None else encode_scale.data_ptr(),
        out.data_ptr(),
        out.stride(0),
        _FLOATS[out.dtype],
        0 if bias is None else bias.data_ptr(),
        0 if bias is None else _FLOATS[bias.dtype],
        out.shape[0],
        weight.out_features,
        weight.in_features,
    )


def _rows(x: Operand, precision: Precision) -> tuple[int, Tensor, Tensor | None, Tensor | None]:
    """Kind of the product, rows, their scales and their global scale."""
    if precision is Precision.FP8 and x.fp8 is not None:
        return _FP8, x.fp8, x.fp8_scale, None
    if precision is Precision.NVFP4 and x.nvfp4 is not None:
        return _NVFP4, x.nvfp4, x.nvfp4_scale, x.encode_scale
    assert x.plain is not None, "the contract looks for it"
    kinds = {Precision.BF16: _BF16, Precision.FP8: _FP8_PLAIN, Precision.NVFP4: _NVFP4_PLAIN}
    return kinds[precision], x.plain, None, None
