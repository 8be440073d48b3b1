"""The call into csrc/cpu/embed."""

from __future__ import annotations

from torch import Tensor

from ocrquant.kernels.extension import extension
from ocrquant.kernels.linear.packed import PackedWeight


def embed_native(
    table: Tensor | PackedWeight,
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
    values, stride = table, 0
    if isinstance(values, PackedWeight):
        assert values.panels is not None, "the caller takes the stored form where there is one"
        values = values.panels
        stride = values.shape[1] // out.element_size()
    sizes = (*out.shape, table.shape[0], 0 if images is None else len(images), stride)
    native.embed(values.data_ptr(), tokens.data_ptr(), pictures, index, out.data_ptr(), *sizes)
