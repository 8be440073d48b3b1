"""Plain torch definition of ``embed``."""

from __future__ import annotations

import torch
from torch import Tensor


def embed_reference(
    table: Tensor,
    tokens: Tensor,
    out: Tensor,
    images: Tensor | None = None,
    image_index: Tensor | None = None,
) -> None:
    """Looks up one row a token; rows that belong to an image come from the image's own embeddings.

    ``out[r] = images[image_index[r]] if image_index[r] >= 0 else table[tokens[r]]``. Nothing is rounded. A
    row whose index lies outside its table becomes NaN: it shows in that request and nowhere else.

    Args:
        table: A[V, h].
        tokens: int32 [R]; ignored where ``image_index`` is not negative.
        out: A[R, h], overwritten.
        images: A[M, h], or None where no row of this step is an image's.
        image_index: int32 [R], -1 for text; given exactly when ``images`` is.
    """
    _gather(table, tokens, out)
    if images is not None:
        assert image_index is not None
        rows = torch.nonzero(image_index >= 0)[:, 0]
        picked = torch.empty(len(rows), out.shape[1], dtype=out.dtype, device=out.device)
        _gather(images, image_index[rows], picked)
        out[rows] = picked


def _gather(table: Tensor, index: Tensor, out: Tensor) -> None:
    inside = (index >= 0) & (index < len(table))
    if len(table):
        out.copy_(table[index.long().clamp(0, len(table) - 1)])
    out.masked_fill_(~inside[:, None], torch.nan)
