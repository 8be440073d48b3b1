"""Pages opened and encoded beside the engine: in worker processes, or in its own thread.

Knows files and encoders; knows no request and no step. Loads no torch, since workers import it.
"""

from __future__ import annotations

from ocrquant.engine.preparing.pool import Preparer, WorkerPool, default_workers, make_preparer
from ocrquant.engine.preparing.task import PageTask, PreparedPage, prepare

__all__ = [
    "PageTask",
    "PreparedPage",
    "Preparer",
    "WorkerPool",
    "default_workers",
    "make_preparer",
    "prepare",
]
