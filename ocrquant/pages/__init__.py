"""Pages and their truth, from folders, PDFs and tables; and crops cut out of a person's own PDFs.

Knows images, PDFs, tables, splits. Knows nothing of models: missing truth is for a later
stage to supply.
"""

from __future__ import annotations

from ocrquant.pages.load import image_sha256, load_pages, page_digest, page_image
from ocrquant.pages.manifest import Manifest, validate, write_manifest
from ocrquant.pages.page import KINDS, MAX_PIXELS, SPLITS, ImageRef, Page, PageKind, Split, TruthSource
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
