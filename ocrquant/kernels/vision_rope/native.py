"""The call into csrc/cpu/vision_rope."""

from __future__ import annotations

from torch import Tensor

from ocrquant.kernels.extension import extension


def vision_rope_native(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> None:
    """See `vision_rope_reference`; bf16 on a CPU."""
    native = extension()
    assert native is not None, "selection answers for it"
    views = ((x.data_ptr(), x.stride(0), x.stride(1)) for x in (q, k))
    native.vision_rope(*views, cos.data_ptr(), sin.data_ptr(), *q.shape)
