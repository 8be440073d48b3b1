"""Causal depthwise convolution and SiLU in plain torch: the definition."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

TAPS = 4


def causal_conv_reference(
    x: Tensor,
    weight: Tensor,
    tail: Tensor,
    q_start: Tensor,
    slots: Tensor,
    fresh: Tensor,
    out: Tensor,
    record: Tensor | None = None,
) -> None:
    """Convolves the rows of N requests, each behind the last three inputs that its slot holds.

    y[t, c] = sum over i of weight[c, i] * x[t - 3 + i, c], summed from the oldest input to the newest, then
    SiLU. Rounding as in `transformers` (checked bit for bit in bf16): the sum is taken in fp32 (fp64 for
    fp64) and rounded to the dtype of x, SiLU is taken of that and rounded again.

    Args:
        x: [R, C], any float dtype; rows may be strided.
        weight: [C, 4] in the dtype of x, the oldest input's tap first.
        tail: [slots, 3, C] in the dtype of x, raw inputs, oldest first.
        q_start: i32 [N + 1]; request i owns the rows q_start[i] .. q_start[i + 1] of x and out.
        slots: i32 [N]; the slot of request i. Below zero: padding, whose rows come out as zeros.
        fresh: i32 [N]; where not 0, the request begins here, and its tail counts as zeros.
        out: [R, C] in the dtype of x.
        record: [slots, T, C] or None. None: the tail becomes the last three inputs. Otherwise the tail stays
            and the inputs are written to record[slot, 0 .. rows], at most T of them, so that whoever decides
            how many of them count can move the tail afterwards (`window_commit.commit_tail`).
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    starts = q_start.tolist()
    for i, (slot, is_fresh) in enumerate(zip(slots.tolist(), fresh.tolist(), strict=True)):
        rows = x[starts[i] : starts[i + 1]]
        length = len(rows)
        if slot < 0 or length == 0:
            out[starts[i] : starts[i + 1]] = 0
            continue
        before = torch.zeros_like(tail[slot]) if is_fresh else tail[slot]
        inputs = torch.cat([before, rows])
        total = torch.zeros_like(rows, dtype=wide)
        for tap in range(TAPS):
            total += weight[:, tap].to(wide) * inputs[tap : tap + length].to(wide)
        out[starts[i] : starts[i + 1]] = F.silu(total.to(x.dtype))
        if record is None:
            tail[slot] = inputs[length:]
        else:
            record[slot, :length] = rows
