"""The calls into csrc/cpu/gated_delta as a function of autograd; fp32 on a CPU."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from ocrquant.kernels.extension import extension


def _sequences(inputs: tuple[Tensor, ...]) -> tuple[Any, Any]:
    """The extension, and the inputs as it takes them."""
    native = extension()
    assert native is not None, "selection answers for it"
    sizes = (*inputs[0].shape[:3], inputs[2].shape[2], inputs[0].shape[3], inputs[2].shape[3])
    return native, native.GatedDeltaSequences(*(x.data_ptr() for x in inputs), *sizes)


class _GatedDelta(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, q: Tensor, k: Tensor, v: Tensor, log_gate: Tensor, beta: Tensor) -> Tensor:
        inputs = (q, k, v, log_gate, beta)
        out = torch.empty_like(inputs[2])
        native, sequences = _sequences(inputs)
        native.gated_delta(sequences, out.data_ptr())
        ctx.save_for_backward(*inputs)
        return out

    @staticmethod
    def backward(ctx: FunctionCtx, d_out: Tensor) -> tuple[Tensor, ...]:
        inputs: tuple[Tensor, ...] = cast(Any, ctx).saved_tensors
        d_out = d_out.contiguous()
        gradients = tuple(torch.empty_like(x) for x in inputs)
        native, sequences = _sequences(inputs)
        native.gated_delta_backward(sequences, d_out.data_ptr(), *(x.data_ptr() for x in gradients))
        return gradients


def gated_delta_rule_native(q: Tensor, k: Tensor, v: Tensor, log_gate: Tensor, beta: Tensor) -> Tensor:
    """See `gated_delta_rule`; dense tensors."""
    return cast(Tensor, _GatedDelta.apply(q, k, v, log_gate, beta))  # type: ignore[no-untyped-call]
