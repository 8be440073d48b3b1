"""Pages and their truth, from folders, PDFs and tables; and crops cut out of a person's own PDFs.

Knows images, PDFs, tables, splits. Knows nothing of models: missing truth is for a later
stage to supply.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ocrquant.pages.page import KINDS, MAX_PIXELS, SPLITS, ImageRef, Page, PageKind, Split, TruthSource

if TYPE_CHECKING:
    from ocrquant.pages.load import image_sha256, load_pages, page_digest, page_image
    from ocrquant.pages.manifest import Manifest, validate, write_manifest
    from ocrquant.pages.records import from_record, to_record

__all__ = [
    "KINDS",
    "MAX_PIXELS",
    "SPLITS",
    "ImageRef",
    "Manifest",
    "Page",
    "PageKind",
    "Split",
    "TruthSource",
    "from_record",
    "image_sha256",
    "load_pages",
    "page_digest",
    "page_image",
    "to_record",
    "validate",
    "write_manifest",
]

# What lists sources and writes records loads pyarrow and pydantic; a process that only opens pages needs
# neither.
_ON_DEMAND = {
    "Manifest": "manifest",
    "from_record": "records",
    "image_sha256": "load",
    "load_pages": "load",
    "page_digest": "load",
    "page_image": "load",
    "to_record": "records",
    "validate": "manifest",
    "write_manifest": "manifest",
}


def __getattr__(name: str) -> Any:
    if name not in _ON_DEMAND:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_ON_DEMAND[name]}"), name)
