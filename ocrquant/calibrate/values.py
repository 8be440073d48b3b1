"""Refuses a model whose weights are broken before anything is measured on it."""

from __future__ import annotations

from ocrquant.adapters.model import DocumentModel
from ocrquant.formats.rounding import require_finite

__all__ = ["require_finite_parameters"]


def require_finite_parameters(document: DocumentModel) -> None:
    """Looks at every parameter once.

    Raises:
        WeightValueError: One holds NaN or Inf; the message names it.
    """
    blocks = document.map.module_path(document.map.block_prefix)
    for name, parameter in document.model.named_parameters():
        if not name.startswith(f"{blocks}."):
            values = parameter if document.residency is None else document.residency.value(parameter)
            require_finite(name, values.detach())
    for index in range(document.map.num_blocks):
        with document.resident_block(index) as block:
            for name, parameter in block.named_parameters():
                require_finite(f"{blocks}.{index}.{name}", parameter.detach())
