"""``causal_conv`` in Triton."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ocrquant.kernels.causal_conv.reference import TAPS
from ocrquant.kernels.triton_common.launch import launch, next_power
from ocrquant.kernels.triton_common.numerics import rounded, silu

_MOST_CHANNELS = 1024
assert TAPS == 4, "the kernel holds three inputs in registers"


@triton.jit
def causal_conv_kernel(
    x,
    x_stride,
    weight,
    tail,
    q_start,
    slots,
    fresh,
    out,
    record,
    record_rows,
    channels,
    CHANNELS: tl.constexpr,
):
    """Program (request, channels)."""
    request = tl.program_id(0)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    is_inside = channel < channels
    start, stop = tl.load(q_start + request), tl.load(q_start + request + 1)
    slot = tl.load(slots + request).to(tl.int64)
    target = out + start.to(tl.int64) * channels + channel
    if slot < 0:
        for _ in range(start, stop):
            tl.store(target, tl.zeros([CHANNELS], tl.bfloat16), mask=is_inside)
            target += channels
        return
    if start == stop:
        return
    before = tail + slot * 3 * channels + channel
    is_kept = tl.load(fresh + request) == 0
    oldest = tl.where(is_kept, tl.load(before, mask=is_inside, other=0.0).to(tl.float32), 0.0)
    older = tl.where(is_kept, tl.load(before + channels, mask=is_inside, other=0.0).to(tl.float32), 0.0)
    old = tl.where(is_kept, tl.load(before + 2 * channels, mask=is_inside, other=0.0).to(tl.float32), 0.0)
    taps = weight + channel * 4
    first = tl.load(taps, mask=is_inside, other=0.0).to(tl.float32)
    second = tl.load(taps + 1, mask=is_inside, other=0.0).to(tl.float32)
    third = tl.load(taps + 2, mask=is_inside, other=0.0).to(tl.float32)
    fourth = tl.load(taps + 3, mask=is_inside, other=0.0).to(tl.float32)
    source = x + start.to(tl.int64) * x_stride + channel
    if record is not None:
        noted = record + slot * record_rows * channels + channel
    for _ in range(start, stop):
        new = tl.load(source, mask=is_inside, other=0.0).to(tl.float32)
        # From the oldest input on; products of bf16 numbers are exact in float32.
        total = 0.0 + first * oldest
        total = total + second * older
        total = total + third * old
        total = total + fourth * new
        tl.store(target, silu(rounded(total)).to(tl.bfloat16), mask=is_inside)
        if record is not None:
            tl.store(noted, new.to(tl.bfloat16), mask=is_inside)
            noted += channels
        oldest, older, old = older, old, new
        source += x_stride
        target += channels
    if record is None:
        tl.store(before, oldest.to(tl.bfloat16), mask=is_inside)
        tl.store(before + channels, older.to(tl.bfloat16), mask=is_inside)
        tl.store(before + 2 * channels, old.to(tl.bfloat16), mask=is_inside)


def causal_conv_triton(
    x: Tensor,
    weight: Tensor,
    tail: Tensor,
    q_start: Tensor,
    slots: Tensor,
    fresh: Tensor,
    out: Tensor,
    record: Tensor | None = None,
) -> None:
    """See `causal_conv_reference`; bf16 on a GPU.

    A program walks through the rows of a request: made for steps and windows, not for long prompts.
    """
    channels = x.shape[1]
    part = min(next_power(channels), _MOST_CHANNELS)
    record_rows = 0 if record is None else record.shape[1]
    launch(
        causal_conv_kernel,
        (len(slots), -(-channels // part)),
        *(x, x.stride(0), weight, tail, q_start, slots, fresh, out, record, record_rows, channels),
        num_warps=4,
        CHANNELS=part,
    )
