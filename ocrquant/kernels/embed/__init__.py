"""Rows of the embedding table, or of the images' own embeddings."""

from __future__ import annotations

from torch import Tensor

from ocrquant.formats.precision import Precision
from ocrquant.kernels.contract import I32, Contract
from ocrquant.kernels.embed.native import embed_native
from ocrquant.kernels.embed.reference import embed_reference
from ocrquant.kernels.linear.packed import PackedWeight
from ocrquant.kernels.selection import use_native

__all__ = ["embed"]


def embed(
    table: Tensor | PackedWeight,
    tokens: Tensor,
    out: Tensor,
    images: Tensor | None = None,
    image_index: Tensor | None = None,
) -> None:
    """See `embed_reference`.

    Raises:
        ShapeError: An argument is not as the reference says.
    """
    contract = Contract("embed")
    if isinstance(table, PackedWeight):
        is_plain = table.precision is Precision.BF16
        contract.require(is_plain, "table", "a weight that is not quantized", table.precision)
        contract.sizes.update(V=table.out_features, h=table.in_features)
        if isinstance(table.stored, Tensor):
            table = table.stored
    else:
        contract.tensor("table", table, "V h", None)
    contract.tensor("tokens", tokens, "R", I32)
    contract.tensor("out", out, "R h", table.dtype)
    both = (images is None) == (image_index is None)
    contract.require(both, "image_index", "given exactly when images is", "one of the two")
    if images is not None and image_index is not None:
        contract.tensor("images", images, "M h", table.dtype)
        contract.tensor("image_index", image_index, "R", I32)
    run = embed_native if use_native("embed", out) else embed_reference
    run(table, tokens, out, images, image_index)
