"""Bidirectional attention inside packed segments in plain torch; knows segments and heads, no image."""

from __future__ import annotations

import torch
from torch import Tensor


def packed_attention_reference(
    q: Tensor, k: Tensor, v: Tensor, starts: Tensor, scale: float, out: Tensor
) -> None:
    """Softmax attention of every row over all rows of its segment.

    Args:
        q: A[R, n, hd], any row and head strides: views of one q|k|v result.
        k: The same.
        v: The same.
        starts: int32 [N + 1]; rows of segment i are ``starts[i] .. starts[i + 1]``.
        scale: Multiplies the scores.
        out: A[R, n * hd]; rows of no segment are left alone.

    Scores, softmax and sums are float32 (float64 for float64 rows); one rounding to A.
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    for begin, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        queries, keys, values = (x[begin:end].to(wide).transpose(0, 1) for x in (q, k, v))
        weights = torch.softmax((queries @ keys.mT) * scale, dim=-1)
        out[begin:end] = (weights @ values).transpose(0, 1).reshape(end - begin, out.shape[1]).to(out.dtype)
