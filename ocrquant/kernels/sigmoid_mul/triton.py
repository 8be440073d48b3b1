"""``sigmoid_mul`` in Triton."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ocrquant.kernels.operand import Operand
from ocrquant.kernels.triton_common.emit import emit, emit_padding, forms, tiling
from ocrquant.kernels.triton_common.launch import has_e2m1_conversion, launch
from ocrquant.kernels.triton_common.numerics import rounded, sigmoid


@triton.jit(do_not_specialize=["rows"])
def sigmoid_mul_kernel(
    x,
    x_stride,
    qg,
    row_stride,
    head_stride,
    rows,
    width,
    out,
    HEAD: tl.constexpr,
    COLUMNS: tl.constexpr,
    CONVERTS: tl.constexpr,
):
    """Program (row, part of it)."""
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * COLUMNS
    if row >= rows:
        emit_padding(row, rows, first, width, out, COLUMNS)
        return
    columns = first + tl.arange(0, COLUMNS)
    is_inside = columns < width
    # The gate is the second half of what lies in a head.
    gates = qg + row * row_stride + (columns // HEAD) * head_stride + HEAD + columns % HEAD
    gate = tl.load(gates, mask=is_inside, other=0.0).to(tl.float32)
    value = tl.load(x + row * x_stride + columns, mask=is_inside, other=0.0).to(tl.float32)
    y = rounded(value * rounded(sigmoid(gate)))
    emit(y, row, first, width, out, COLUMNS, CONVERTS)


def sigmoid_mul_triton(x: Tensor, qg: Tensor, out: Operand) -> None:
    """See `sigmoid_mul_reference`; bf16 on a GPU."""
    rows, width = x.shape
    cut = tiling(out, rows, width)
    launch(
        sigmoid_mul_kernel,
        cut.grid,
        *(x, x.stride(0), qg, qg.stride(0), qg.stride(1), rows, width, forms(out)),
        num_warps=cut.num_warps,
        HEAD=qg.shape[2] // 2,
        COLUMNS=cut.columns,
        CONVERTS=has_e2m1_conversion(x.device),
    )
