"""The call into csrc/cpu/attention_inputs."""

from __future__ import annotations

import torch
from torch import Tensor

from ocrquant.kernels.extension import extension


def attention_inputs_native(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
    cos: Tensor,
    sin: Tensor,
    slot_mapping: Tensor,
    out_q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k_scale: float,
    v_scale: float,
) -> None:
    """See `attention_inputs_reference`; bf16 on a CPU."""
    native = extension()
    assert native is not None, "selection answers for it"
    views = ((x.data_ptr(), x.stride(0), x.stride(1)) for x in (q, k, v))
    norms = (0 if x is None else x.data_ptr() for x in (q_norm, k_norm))
    others = (x.data_ptr() for x in (cos, sin, slot_mapping, out_q, k_cache, v_cache))
    sizes = (*q.shape[:2], k.shape[1], q.shape[2], cos.shape[1])
    native.attention_inputs(
        *views, *norms, *others, sizes, eps, k_scale, v_scale, k_cache.dtype == torch.uint8
    )
