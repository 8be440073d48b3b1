"""``silu_mul`` in Triton."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ocrquant.kernels.operand import Operand
from ocrquant.kernels.triton_common.emit import emit, emit_padding, forms, tiling
from ocrquant.kernels.triton_common.launch import has_e2m1_conversion, launch
from ocrquant.kernels.triton_common.numerics import rounded, silu


@triton.jit(do_not_specialize=["rows"])
def silu_mul_kernel(gate_up, stride, rows, width, out, COLUMNS: tl.constexpr, CONVERTS: tl.constexpr):
    """Program (row, part of it)."""
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * COLUMNS
    if row >= rows:
        emit_padding(row, rows, first, width, out, COLUMNS)
        return
    columns = first + tl.arange(0, COLUMNS)
    is_inside = columns < width
    source = gate_up + row * stride + columns
    gate = tl.load(source, mask=is_inside, other=0.0).to(tl.float32)
    up = tl.load(source + width, mask=is_inside, other=0.0).to(tl.float32)
    y = rounded(rounded(silu(gate)) * up)
    emit(y, row, first, width, out, COLUMNS, CONVERTS)


def silu_mul_triton(gate_up: Tensor, out: Operand) -> None:
    """See `silu_mul_reference`; bf16 on a GPU."""
    rows, twice = gate_up.shape
    cut = tiling(out, rows, twice // 2)
    launch(
        silu_mul_kernel,
        cut.grid,
        *(gate_up, gate_up.stride(0), rows, twice // 2, forms(out)),
        num_warps=cut.num_warps,
        COLUMNS=cut.columns,
        CONVERTS=has_e2m1_conversion(gate_up.device),
    )
