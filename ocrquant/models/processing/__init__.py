"""Page processing of the runtime: pages to tokens, patches and positions; tokens to text.

Knows the image rules and prompts of the families. Knows no weights. Encoding a page needs NumPy and Pillow
only; what needs torch or a tokenizer is imported at its first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ocrquant.models.processing.images import ImageSpec, image_spec
from ocrquant.models.processing.pages import EncodedPage, PageEncoder, PromptTokens

if TYPE_CHECKING:
    from ocrquant.models.processing.pixels import PixelTable
    from ocrquant.models.processing.processor import Processor, open_processor

__all__ = [
    "EncodedPage",
    "ImageSpec",
    "PageEncoder",
    "PixelTable",
    "Processor",
    "PromptTokens",
    "image_spec",
    "open_processor",
]

_ON_DEMAND = {"PixelTable": "pixels", "Processor": "processor", "open_processor": "processor"}


def __getattr__(name: str) -> Any:
    if name not in _ON_DEMAND:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_ON_DEMAND[name]}"), name)
