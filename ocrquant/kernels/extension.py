"""The compiled extension, where it was built; the reason where it was not.

Knows how to find ``ocrquant._native`` and its threads. Knows no op.
"""

from __future__ import annotations

import importlib
import os
import warnings
from functools import cache
from types import ModuleType

from ocrquant import env

__all__ = ["extension", "extension_state", "missing_reason"]


def _omp_threads() -> int:
    """What OpenMP is told of threads on its outer level; 0 where nothing is said."""
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(first) if first.isdigit() else 0


@cache
def _load() -> tuple[ModuleType | None, str]:
    try:
        module = importlib.import_module("ocrquant._native")
    except ImportError as error:
        return None, f"ocrquant._native is not built ({error})"
    threads = env.num_threads() or _omp_threads()
    if threads:
        module.set_num_threads(threads)
    return module, ""


@cache
def _say_missing(reason: str) -> None:
    warnings.warn(f"{reason}; the slower reference ops run: reinstall the package", stacklevel=3)


def extension() -> ModuleType | None:
    """The extension module; None, and one warning a process, where it is missing."""
    module, reason = _load()
    if module is None:
        _say_missing(reason)
    return module


def extension_state() -> str:
    """Where the extension came from, or why there is none: what a kept choice depends on."""
    module, reason = _load()
    return reason if module is None else str(module.__file__)


def missing_reason() -> str:
    """Why there is no extension; empty where there is one."""
    return _load()[1]
