"""Compiles a C++ source of csrc/cpu with the machine's compiler, and loads it.

Knows files, a compiler and ctypes; knows nothing of tensors. Where sources or compiler are missing the answer
is None with a reason, and the caller falls back to its reference.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[2] / "csrc" / "cpu"
# Not -ffast-math: with -shared, older GCC then links start-up code that flushes denormals in the whole
# process.
RELAXED = ("-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-fassociative-math")
FLAGS = (
    "-O3",
    "-march=native",
    "-mprefer-vector-width=512",
    *RELAXED,
    "-fopenmp",
    "-shared",
    "-fPIC",
    "-std=c++17",
)


@dataclass(frozen=True, slots=True)
class Library:
    """A loaded library, or the reason why there is none."""

    handle: ctypes.CDLL | None
    reason: str


def _processor() -> str:
    """What distinguishes processors for -march=native: the machine name and, on Linux, the feature flags."""
    info = Path("/proc/cpuinfo")
    flags = (
        next((x for x in info.read_text().splitlines() if x.startswith("flags")), "") if info.exists() else ""
    )
    return platform.machine() + flags


@cache
def load(name: str) -> Library:
    """The library of csrc/cpu/`name`.cpp, compiled into the user's cache folder when it is not there yet."""
    source = SOURCES / f"{name}.cpp"
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if not source.is_file():
        return Library(None, f"source {source.name} is not installed")
    if compiler is None:
        return Library(None, "no C++ compiler (c++ or $CXX) on the path")
    text = source.read_bytes() + " ".join((compiler, *FLAGS)).encode() + _processor().encode()
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "ocrquant"
    target = folder / f"{name}-{hashlib.sha256(text).hexdigest()[:16]}.so"
    if not target.exists():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                built = Path(scratch) / target.name
                subprocess.run(
                    [compiler, *FLAGS, str(source), "-o", str(built)], check=True, capture_output=True
                )
                os.replace(built, target)
        except (OSError, subprocess.CalledProcessError) as error:
            return Library(None, f"compiling {source.name} failed: {error}")
    return Library(ctypes.CDLL(str(target)), f"{target.name} compiled by {Path(compiler).name}")
