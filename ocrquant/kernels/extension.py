"""The compiled extension, where it was built; the reason where it was not.

Where the sources lie beside the package, an extension that was compiled from others is refused: its kernels
would read weights and arguments in another layout than they are written in. Knows how to find
``ocrquant._native`` and its threads. Knows no op.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import warnings
from functools import cache
from pathlib import Path
from types import ModuleType

from ocrquant import env
from ocrquant.errors import DeviceError

SOURCES = Path(__file__).resolve().parents[2] / "csrc"
"""Of the extension, in a checkout; an installed package has none."""

__all__ = ["check_sources", "extension", "extension_state", "missing_reason", "sources_digest"]


def _omp_threads() -> int:
    """What OpenMP is told of threads on its outer level; 0 where nothing is said."""
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(first) if first.isdigit() else 0


def sources_digest(folder: Path) -> str:
    """What ``csrc/stamp.cmake`` compiles in: a digest over the paths and contents of all sources (2 ms)."""
    kinds = {".h", ".cpp", ".txt", ".cmake"}
    files = sorted((path.relative_to(folder).as_posix(), path) for path in folder.rglob("*"))
    lines = [
        f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n"
        for name, path in files
        if path.suffix in kinds and path.is_file()
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def check_sources(module: ModuleType, folder: Path = SOURCES) -> None:
    """Compares an extension with the sources beside the package, if there are any.

    Raises:
        DeviceError: It was compiled from others.
    """
    if not (folder / "CMakeLists.txt").is_file():
        return
    compiled = module.sources() if hasattr(module, "sources") else "no digest"
    if compiled != (here := sources_digest(folder)):
        raise DeviceError(
            f"extension {module.__file__}",
            expected=f"one compiled from {folder} as it is ({here[:12]})",
            given=f"one of other sources ({compiled[:12]})",
            fix="run make native, or install the package again",
        )


@cache
def _load() -> tuple[ModuleType | None, str]:
    try:
        module = importlib.import_module("ocrquant._native")
    except ImportError as error:
        return None, f"ocrquant._native is not built ({error})"
    check_sources(module)
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
