"""Plain torch definition of ``embed``."""

from __future__ import annotations

import torch
from torch import Tensor

from ocrquant.kernels.linear.layout import PANEL
from ocrquant.kernels.linear.packed import PackedWeight


def embed_reference(
    table: Tensor | PackedWeight,
    tokens: Tensor,
    out: Tensor,
    images: Tensor | None = None,
    image_index: Tensor | None = None,
) -> None:
    """Looks up one row a token; rows that belong to an image come from the image's own embeddings.

    ``out[r] = images[image_index[r]] if image_index[r] >= 0 else table[tokens[r]]``. Nothing is rounded. A
    row whose index lies outside its table becomes NaN: it shows in that request and nowhere else.

    Args:
        table: A[V, h], or the packed weight of an output head that is tied to the embedding, not quantized.
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


def _gather(table: Tensor | PackedWeight, index: Tensor, out: Tensor) -> None:
    count = table.shape[0]
    inside = (index >= 0) & (index < count)
    if count:
        out.copy_(_rows(table, index.long().clamp(0, count - 1)))
    out.masked_fill_(~inside[:, None], torch.nan)


def _rows(table: Tensor | PackedWeight, index: Tensor) -> Tensor:
    if isinstance(table, Tensor):
        return table[index]
    assert table.panels is not None, "the caller takes the stored form where there is one"
    pairs = table.panels.view(table.dtype).unflatten(1, (-1, PANEL, 2))[index // PANEL]
    rows: Tensor = pairs[torch.arange(len(index)), :, index % PANEL].flatten(1)
    return rows[:, : table.in_features]
