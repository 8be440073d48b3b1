"""The call into csrc/cpu/embed."""

from __future__ import annotations

from torch import Tensor

from ocrquant.kernels.extension import extension


def embed_native(
    table: Tensor,
    tokens: Tensor,
    out: Tensor,
    images: Tensor | None = None,
    image_index: Tensor | None = None,
) -> None:
    """See `embed_reference`; bf16 on a CPU."""
    native = extension()
    assert native is not None, "selection answers for it"
    pictures = 0 if images is None else images.data_ptr()
    index = 0 if image_index is None else image_index.data_ptr()
    sizes = (*out.shape, len(table), 0 if images is None else len(images))
    native.embed(table.data_ptr(), tokens.data_ptr(), pictures, index, out.data_ptr(), *sizes)
