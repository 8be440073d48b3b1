"""``ocrquant run``: a checkpoint and pages in, one text file a page out.

Knows files, names and what is up to date. Knows nothing of how a page is read; the engine does that.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ocrquant.run.options import RunOptions
from ocrquant.run.summary import RunSummary

if TYPE_CHECKING:
    from ocrquant.run.read import run_pages

__all__ = ["RunOptions", "RunSummary", "run_pages"]


def __getattr__(name: str) -> Any:
    # Reading brings torch along; looking at options and a summary does not.
    if name != "run_pages":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module("ocrquant.run.read").run_pages
