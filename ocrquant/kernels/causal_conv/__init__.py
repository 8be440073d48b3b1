"""The short causal convolution in front of a gated delta rule, over the rows of many requests at once.

`causal_conv` is the operation; each request's last inputs live in a pool of slots. Knows nothing of layers,
windows of drafts or schedulers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ocrquant.kernels.causal_conv.native import causal_conv_native
from ocrquant.kernels.causal_conv.reference import TAPS, causal_conv_reference
from ocrquant.kernels.contract import Contract
from ocrquant.kernels.selection import implementation

__all__ = ["TAPS", "causal_conv"]

CHANNEL_MULTIPLE = 16


def causal_conv(
    x: Tensor,
    weight: Tensor,
    tail: Tensor,
    q_start: Tensor,
    slots: Tensor,
    fresh: Tensor,
    out: Tensor,
    record: Tensor | None = None,
) -> None:
    """See `causal_conv_reference`.

    Raises:
        ShapeError: An argument is not as the reference says.
    """
    contract = Contract("causal_conv")
    contract.tensor("x", x, "R C", None, strided=True)
    contract.tensor("weight", weight, f"C {TAPS}", x.dtype)
    contract.tensor("tail", tail, f"slots {TAPS - 1} C", x.dtype)
    contract.tensor("slots", slots, "N", torch.int32)
    contract.tensor("fresh", fresh, "N", torch.int32)
    contract.tensor("q_start", q_start, f"{len(slots) + 1}", torch.int32)
    contract.tensor("out", out, "R C", x.dtype)
    if record is not None:
        contract.tensor("record", record, "slots T C", x.dtype)
    run = implementation("causal_conv", x, causal_conv_native, causal_conv_reference)
    if run is causal_conv_native:
        fits = x.shape[1] % CHANNEL_MULTIPLE == 0
        contract.require(fits, "x", f"channels that are a multiple of {CHANNEL_MULTIPLE}", x.shape[1])
    run(x, weight, tail, q_start, slots, fresh, out, record)
