"""The call into csrc/cpu/causal_conv."""

from __future__ import annotations

from torch import Tensor

from ocrquant.kernels.extension import extension


def causal_conv_native(
    x: Tensor,
    weight: Tensor,
    tail: Tensor,
    q_start: Tensor,
    slots: Tensor,
    fresh: Tensor,
    out: Tensor,
    record: Tensor | None = None,
) -> None:
    """See `causal_conv_reference`; bf16 on a CPU."""
    native = extension()
    assert native is not None, "selection answers for it"
    native.causal_conv(
        x.data_ptr(),
        x.stride(0),
        weight.data_ptr(),
        tail.data_ptr(),
        q_start.data_ptr(),
        slots.data_ptr(),
        fresh.data_ptr(),
        out.data_ptr(),
        0 if record is None else record.data_ptr(),
        0 if record is None else record.shape[1],
        len(slots),
        x.shape[1],
    )
