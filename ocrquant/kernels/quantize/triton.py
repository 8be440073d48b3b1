"""``quantize`` in Triton."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ocrquant.kernels.operand import Operand
from ocrquant.kernels.triton_common.emit import emit, emit_padding, forms, tiling
from ocrquant.kernels.triton_common.launch import has_e2m1_conversion, launch


@triton.jit(do_not_specialize=["rows"])
def quantize_kernel(x, x_stride, rows, width, out, COLUMNS: tl.constexpr, CONVERTS: tl.constexpr):
    """Program (row, part of it)."""
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * COLUMNS
    if row >= rows:
        emit_padding(row, rows, first, width, out, COLUMNS)
        return
    columns = first + tl.arange(0, COLUMNS)
    y = tl.load(x + row * x_stride + columns, mask=columns < width, other=0.0).to(tl.float32)
    emit(y, row, first, width, out, COLUMNS, CONVERTS)


def quantize_triton(x: Tensor, out: Operand) -> None:
    """See `quantize_reference`; bf16 on a GPU."""
    rows, width = x.shape
    cut = tiling(out, rows, width)
    launch(
        quantize_kernel,
        cut.grid,
        *(x, x.stride(0), rows, width, forms(out)),
        num_warps=cut.num_warps,
        COLUMNS=cut.columns,
        CONVERTS=has_e2m1_conversion(x.device),
    )
