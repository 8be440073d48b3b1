"""``gated_rms_norm`` in Triton."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ocrquant.kernels.operand import Operand
from ocrquant.kernels.triton_common.emit import emit, emit_padding, forms, tiling
from ocrquant.kernels.triton_common.launch import has_e2m1_conversion, launch, require_power
from ocrquant.kernels.triton_common.numerics import reciprocal_root, rounded, silu


@triton.jit(do_not_specialize=["rows"])
def gated_rms_norm_kernel(
    o,
    o_stride,
    z,
    z_stride,
    weight,
    eps,
    rows,
    width,
    out,
    HEAD: tl.constexpr,
    COLUMNS: tl.constexpr,
    CONVERTS: tl.constexpr,
):
    """Program (row, whole heads of it)."""
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * COLUMNS
    if row >= rows:
        emit_padding(row, rows, first, width, out, COLUMNS)
        return
    columns = first + tl.arange(0, COLUMNS)
    is_inside = columns < width
    value = tl.load(o + row * o_stride + columns, mask=is_inside, other=0.0).to(tl.float32)
    heads = tl.reshape(value, [COLUMNS // HEAD, HEAD])
    mean = tl.sum(heads * heads, axis=1) * (1.0 / HEAD)  # exact: HEAD is a power of two
    scaled = rounded(heads * reciprocal_root(mean + eps)[:, None])
    gain = rounded(tl.load(weight + tl.arange(0, HEAD)))
    weighted = tl.reshape(rounded(scaled * gain[None, :]), [COLUMNS])
    gate = tl.load(z + row * z_stride + columns, mask=is_inside, other=0.0).to(tl.float32)
    y = rounded(weighted * silu(gate))
    emit(y, row, first, width, out, COLUMNS, CONVERTS)


def gated_rms_norm_triton(o: Tensor, z: Tensor, weight: Tensor, eps: float, out: Operand) -> None:
    """See `gated_rms_norm_reference`; bf16 on a GPU, V a power of two.

    Raises:
        ShapeError: V is none.
    """
    rows, width = o.shape
    head = len(weight)
    require_power("gated_rms_norm", "V", head)
    cut = tiling(out, rows, width, least=head)
    launch(
        gated_rms_norm_kernel,
        cut.grid,
        *(o, o.stride(0), z, z.stride(0), weight, eps, rows, width, forms(out)),
        num_warps=cut.num_warps,
        HEAD=head,
        COLUMNS=cut.columns,
        CONVERTS=has_e2m1_conversion(o.device),
    )
