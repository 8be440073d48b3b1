"""The call into csrc/cpu/selector_walk."""

from __future__ import annotations

from torch import Tensor

from ocrquant.kernels.extension import extension


def selector_walk_native(
    logits: Tensor,
    gate: Tensor,
    predecessor: Tensor,
    successor: Tensor,
    tokens: Tensor,
    block: int,
    top_k: int,
    out_tokens: Tensor,
    out_alone: Tensor,
) -> None:
    """See `selector_walk_reference`; bf16 gates and codebooks on a CPU."""
    native = extension()
    assert native is not None, "selection answers for it"
    tensors = (logits, gate, predecessor, successor, tokens, out_tokens, out_alone)
    sizes = (*logits.shape, gate.shape[1], block, top_k, gate.stride(0))
    native.selector_walk(*(x.data_ptr() for x in tensors), sizes)
