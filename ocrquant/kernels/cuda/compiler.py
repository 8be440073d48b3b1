"""Compiles csrc/cuda into one shared library an architecture, and says what the compiler made of each kernel.

A library lies under ``build/cuda`` of the checkout, named after the digest of the sources and of the command,
so that a changed source is compiled again and an old library is never loaded. The libraries need no torch and
no GPU to be made. `EMULATED` is the same source compiled for the processor: threads of a block run one after
another, which is slow and is how machines without a GPU test the kernels.

Knows compilers; knows no kernels.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from filelock import FileLock

from ocrquant.errors import DeviceError
from ocrquant.kernels.cuda.resources import KernelResources, read_resources, write_resources

__all__ = ["ARCHITECTURES", "EMULATED", "SOURCES", "Build", "architecture_of", "build", "missing_compiler"]

SOURCES = Path(__file__).resolve().parents[3] / "csrc" / "cuda"
"""In a checkout; an installed package has none."""

LIBRARIES = SOURCES.parents[1] / "build" / "cuda"

EMULATED = "emulated"

ARCHITECTURES: Mapping[str, tuple[int, int]] = MappingProxyType({"sm_90a": (9, 0), "sm_100a": (10, 0)})
"""Name to compute capability. Code for an "a" architecture runs on that one only."""

# Without --fmad=false the compiler fuses a product and a sum where the source does not say so, and the device
# would round otherwise than the definition.
_NVCC = ("-std=c++17", "-O3", "--fmad=false", "-Xptxas", "-v", "-shared", "-Xcompiler", "-fPIC", "--keep")
_HOST = (
    "-std=c++17",
    "-O2",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fPIC",
    "-shared",
    "-Wall",
    "-Wextra",
    "-Werror",
)
_HOST_ONLY = ("-Wno-unknown-pragmas", "-DOCRQUANT_EMULATED", "-x", "c++")


@dataclass(frozen=True, slots=True)
class Build:
    """A compiled library.

    Attributes:
        architecture: A key of `ARCHITECTURES`, or `EMULATED`.
        path: The shared library.
        kernels: What the compiler said of each kernel; empty for `EMULATED`.
    """

    architecture: str
    path: Path
    kernels: tuple[KernelResources, ...]


def architecture_of(capability: tuple[int, int]) -> str | None:
    """The architecture that a GPU of this compute capability runs; None where there is none."""
    return next((name for name, value in ARCHITECTURES.items() if value == capability), None)


@cache
def _compiler(architecture: str) -> str | None:
    if architecture == EMULATED:
        return shutil.which("g++")
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    return shutil.which("nvcc") or shutil.which("nvcc", path=f"{home}/bin")


def missing_compiler(architecture: str) -> str:
    """Why a library cannot be compiled here; empty where it can."""
    if not SOURCES.is_dir():
        return f"no sources at {SOURCES}: the package is installed without them"
    name = "g++" if architecture == EMULATED else "nvcc"
    return "" if _compiler(architecture) else f"no {name} on this machine"


def _arguments(architecture: str) -> tuple[str, ...]:
    """Of the compiler, without file names."""
    if architecture == EMULATED:
        fused = ("-mfma",) if platform.machine() in ("x86_64", "AMD64") else ()
        return (*_HOST, *fused, *_HOST_ONLY)
    number = architecture.removeprefix("sm_")
    return (*_NVCC, "-gencode", f"arch=compute_{number},code={architecture}")


def _digest(architecture: str) -> str:
    lines = [*_arguments(architecture)]
    for path in sorted(SOURCES.rglob("*.cu*")):
        lines.append(f"{path.relative_to(SOURCES)} {hashlib.sha256(path.read_bytes()).hexdigest()}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def build(architecture: str, folder: Path | None = None) -> Build:
    """Compiles the library of an architecture where it is not there yet.

    Takes about a minute of one core for a GPU. Safe to call from several processes: one compiles, the others
    wait.

    Args:
        architecture: A key of `ARCHITECTURES`, or `EMULATED`.
        folder: Where libraries lie; ``build/cuda`` of the checkout by default.

    Raises:
        DeviceError: The architecture is unknown, there is no compiler, no source and no library compiled
            before, or the compiler refuses the sources.
    """
    if architecture not in (*ARCHITECTURES, EMULATED):
        known = ", ".join((*ARCHITECTURES, EMULATED))
        raise DeviceError("CUDA kernels", expected=known, given=architecture, fix="name one of these")
    folder = folder or LIBRARIES
    path = folder / f"{architecture}-{_digest(architecture)[:16]}.so"
    listing = path.with_suffix(".json")
    if not (path.is_file() and listing.is_file()):
        reason = missing_compiler(architecture)
        if reason:
            fix = "install the CUDA toolkit 13 or newer, or set CUDA_HOME"
            raise DeviceError(
                f"CUDA kernels for {architecture}", expected="a compiler", given=reason, fix=fix
            )
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / f"{architecture}.lock"):
            if not (path.is_file() and listing.is_file()):
                _compile(architecture, path, listing)
    return Build(architecture, path, read_resources(listing))


def _compile(architecture: str, path: Path, listing: Path) -> None:
    compiler = _compiler(architecture)
    assert compiler is not None, "the caller looked"
    sources = [str(source) for source in sorted(SOURCES.rglob("*.cu"))]
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        made = Path(scratch) / "library.so"
        keep = () if architecture == EMULATED else ("--keep-dir", scratch)
        command = [compiler, *_arguments(architecture), *keep, f"-I{SOURCES}", *sources, "-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=scratch, check=False)
        if done.returncode != 0 or not made.is_file():
            lines = [*done.stdout.splitlines(), *done.stderr.splitlines()]
            said = "\n".join(line for line in lines if "error" in line.lower()) or lines[-1:]
            fix = "compare the compiler with the toolkit that README names"
            raise DeviceError(f"{compiler} for {architecture}", expected="a library", given=said, fix=fix)
        ptx = "\n".join(file.read_text() for file in sorted(Path(scratch).glob("*.ptx")))
        resources = Path(scratch) / "kernels.json"
        write_resources(resources, done.stdout + done.stderr, ptx)
        os.replace(resources, listing)
        os.replace(made, path)
