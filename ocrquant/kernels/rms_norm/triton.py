"""``rms_norm`` in Triton."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ocrquant.kernels.operand import Operand
from ocrquant.kernels.rms_norm.reference import Rule
from ocrquant.kernels.triton_common.emit import emit, emit_padding, forms, tiling
from ocrquant.kernels.triton_common.launch import has_e2m1_conversion, launch
from ocrquant.kernels.triton_common.numerics import reciprocal_root, rounded


@triton.jit(do_not_specialize=["rows"])
def rms_norm_kernel(
    x,
    x_stride,
    delta,
    delta_stride,
    weight,
    eps,
    rows,
    width,
    out,
    IS_UNIT: tl.constexpr,
    COLUMNS: tl.constexpr,
    CONVERTS: tl.constexpr,
):
    """Program (row)."""
    row = tl.program_id(0).to(tl.int64)
    if row >= rows:
        emit_padding(row, rows, 0, width, out, COLUMNS)
        return
    columns = tl.arange(0, COLUMNS)
    is_inside = columns < width
    value = tl.load(x + row * x_stride + columns, mask=is_inside, other=0.0).to(tl.float32)
    if delta is not None:
        change = tl.load(delta + row * delta_stride + columns, mask=is_inside, other=0.0).to(tl.float32)
        value = rounded(value + change)
        tl.store(x + row * x_stride + columns, value.to(tl.bfloat16), mask=is_inside)
    mean = tl.div_rn(tl.sum(value * value, axis=0), width.to(tl.float32))
    scaled = value * reciprocal_root(mean + eps)
    gain = tl.load(weight + columns, mask=is_inside, other=0.0)
    if IS_UNIT:
        y = rounded(scaled * (1.0 + gain))
    else:
        y = rounded(rounded(scaled) * rounded(gain))
    emit(y, row, 0, width, out, COLUMNS, CONVERTS)


def rms_norm_triton(
    x: Tensor, weight: Tensor, eps: float, out: Operand, rule: Rule, delta: Tensor | None = None
) -> None:
    """See `rms_norm_reference`; bf16 on a GPU."""
    rows, width = x.shape
    cut = tiling(out, rows, width, whole_rows=True)
    delta_stride = 0 if delta is None else delta.stride(0)
    launch(
        rms_norm_kernel,
        cut.grid,
        *(x, x.stride(0), delta, delta_stride, weight, eps, rows, width, forms(out)),
        num_warps=cut.num_warps,
        IS_UNIT=rule == "unit",
        COLUMNS=cut.columns,
        CONVERTS=has_e2m1_conversion(x.device),
    )
