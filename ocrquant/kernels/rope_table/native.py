"""The call into csrc/cpu/rope_table."""

from __future__ import annotations

import torch
from torch import Tensor

from ocrquant.kernels.extension import extension


def rope_table_native(
    positions: Tensor, inv_freq: Tensor, axis: Tensor, out_cos: Tensor, out_sin: Tensor, dtype: torch.dtype
) -> None:
    """See `rope_table_reference`; float32 tables on a CPU, rounded to bf16 or not at all.

    Cosines are the nearest values, which the reference's may miss by one step of the table's type.
    """
    native = extension()
    assert native is not None, "selection answers for it"
    native.rope_table(
        positions.data_ptr(),
        positions.stride(0),
        inv_freq.data_ptr(),
        axis.data_ptr(),
        out_cos.data_ptr(),
        out_sin.data_ptr(),
        *out_cos.shape,
        dtype == torch.bfloat16,
    )
