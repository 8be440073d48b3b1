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
    for name, parameter in document.model.named_parameters():
        require_finite(name, parameter.detach())
