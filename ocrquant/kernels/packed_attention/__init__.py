"""Bidirectional attention inside packed segments."""

from __future__ import annotations

from torch import Tensor

from ocrquant.kernels.contract import I32, Contract
from ocrquant.kernels.packed_attention.native import packed_attention_native
from ocrquant.kernels.packed_attention.reference import packed_attention_reference
from ocrquant.kernels.selection import use_native

__all__ = ["packed_attention"]


def packed_attention(q: Tensor, k: Tensor, v: Tensor, starts: Tensor, scale: float, out: Tensor) -> None:
    """See `packed_attention_reference`.

    Raises:
        ShapeError: An argument is not as the reference says.
    """
    contract = Contract("packed_attention")
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        contract.tensor(name, tensor, "R n hd", q.dtype, strided=True)
    contract.tensor("starts", starts, "bounds", I32)
    contract.require(starts.shape[0] > 0, "starts", "the end of every segment after a first start", "nothing")
    contract.tensor("out", out, "R width", q.dtype)
    width = q.shape[1] * q.shape[2]
    contract.require(out.shape[1] == width, "out", f"width {width}", out.shape[1])
    run = packed_attention_native if use_native("packed_attention", q) else packed_attention_reference
    run(q, k, v, starts, scale, out)
