"""The call into csrc/cpu/packed_attention."""

from __future__ import annotations

from torch import Tensor

from ocrquant.kernels.extension import extension


def packed_attention_native(
    q: Tensor, k: Tensor, v: Tensor, starts: Tensor, scale: float, out: Tensor
) -> None:
    """See `packed_attention_reference`; bf16 on a CPU. A row's sums do not depend on other segments."""
    native = extension()
    assert native is not None, "selection answers for it"
    views = ((x.data_ptr(), x.stride(0), x.stride(1)) for x in (q, k, v))
    segments = starts.shape[0] - 1
    native.packed_attention(*views, starts.data_ptr(), segments, *q.shape[1:], scale, out.data_ptr())
