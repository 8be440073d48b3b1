"""The compiled library of a device, its launchers as Python calls, and why there is none.

A tensor's device decides: a GPU runs the library of its architecture on the current stream, a CPU runs the
emulated one. Knows how to call; knows no op.
"""

from __future__ import annotations

import ctypes
from functools import cache

import torch

from ocrquant.errors import DeviceError
from ocrquant.kernels.cuda.arguments import SIGNATURES, SIZES
from ocrquant.kernels.cuda.compiler import (
    ARCHITECTURES,
    EMULATED,
    Build,
    architecture_of,
    build,
)

__all__ = ["Library", "architecture", "library", "missing_reason", "run"]


class Library:
    """A loaded library.

    Raises:
        DeviceError: It cannot be loaded, or its structures are not those of this package.
    """

    def __init__(self, compiled: Build) -> None:
        self.build = compiled
        try:
            self._handle = ctypes.CDLL(str(compiled.path))
        except OSError as error:
            fix = "delete it; it is compiled again"
            raise DeviceError(compiled.path, expected="a library that loads", given=error, fix=fix) from error
        for name, structure in SIZES.items():
            function = getattr(self._handle, name)
            function.restype = ctypes.c_int64
            assert function() == ctypes.sizeof(structure), f"{structure.__name__} is not what {name} says"
        self._handle.ocrquant_error_text.restype = ctypes.c_char_p
        for name, arguments in SIGNATURES.items():
            function = getattr(self._handle, f"ocrquant_{name}")
            function.argtypes = [*arguments, ctypes.c_void_p]
            function.restype = ctypes.c_int32

    def launch(self, name: str, stream: int, *arguments: object) -> None:
        """Puts a kernel on a stream; returns before it has run.

        Raises:
            DeviceError: The launch was refused.
        """
        error = getattr(self._handle, f"ocrquant_{name}")(*arguments, stream)
        if error != 0:
            text = self._handle.ocrquant_error_text(error).decode()
            given = f"error {error} ({text})"
            fix = "pass what the op's docstring says, or look for an earlier kernel that failed"
            raise DeviceError(f"CUDA kernel {name}", expected="a launch", given=given, fix=fix)

    def emulate(self, *, is_backwards: bool = False, ignores_barriers: bool = False) -> None:
        """Emulated only: in which order a block's threads run, and whether they wait at its barriers."""
        self._handle.ocrquant_emulate(int(is_backwards), int(ignores_barriers))


@cache
def _loaded(name: str) -> Library:
    return Library(build(name))


def architecture(device: torch.device | str) -> str:
    """The architecture whose library runs on a device: `EMULATED` on a CPU.

    Raises:
        DeviceError: A GPU for which the kernels are not written.
    """
    device = torch.device(device)
    if device.type == "cpu":
        return EMULATED
    capability = torch.cuda.get_device_capability(device)
    name = architecture_of(capability)
    if name is None:
        known = ", ".join(f"{major}.{minor}" for major, minor in ARCHITECTURES.values())
        raise DeviceError(
            f"CUDA kernels on {device}",
            expected=f"compute capability {known}",
            given=f"{capability[0]}.{capability[1]}",
            fix="let the Triton kernels run",
        )
    return name


def library(device: torch.device | str) -> Library:
    """The library of a device, compiled at the first call where it is not there yet.

    Raises:
        DeviceError: See `missing_reason`.
    """
    return _loaded(architecture(device))


def missing_reason(device: torch.device | str) -> str:
    """Why the kernels cannot run on a device; empty where they can. Compiles the library if that is due."""
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        return "torch sees no GPU"
    try:
        library(device)
    except DeviceError as error:
        return str(error)
    return ""


def run(name: str, device: torch.device, *arguments: object) -> None:
    """Launches on the current stream of a device.

    Raises:
        DeviceError: There is no library, or the launch was refused.
    """
    if device.type != "cuda":
        return library(device).launch(name, 0, *arguments)
    with torch.cuda.device(device):
        library(device).launch(name, torch.cuda.current_stream(device).cuda_stream, *arguments)
