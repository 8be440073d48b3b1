"""Which device to run on.

Knows the names that users write and what this machine has.
"""

from __future__ import annotations

import torch

from ocrquant import env
from ocrquant.errors import DeviceError

__all__ = ["resolve_device"]


def resolve_device(requested: str | None = None) -> torch.device:
    """The device of a name: ``cpu``, ``cuda``, ``cuda:N``, or ``auto``.

    ``auto`` is CUDA where there is one, else the CPU.

    Args:
        requested: What the command line or the recipe says; None takes ``OCRQUANT_DEVICE``, else ``auto``.

    Raises:
        DeviceError: A CUDA device is asked for that this machine lacks, or the name is unknown.
        EnvironmentVariableError: ``OCRQUANT_DEVICE`` is malformed.
    """
    name = requested or env.device() or "auto"
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, index = name.partition(":")
    if name != "cpu" and (kind != "cuda" or (index != "" and not index.isdecimal())):
        raise DeviceError(
            "device", expected="auto, cpu, cuda or cuda:N", given=repr(name), fix="correct the name"
        )
    count = torch.cuda.device_count() if kind == "cuda" and torch.cuda.is_available() else 0
    if kind == "cuda" and int(index or 0) >= count:
        raise DeviceError(
            f"device {name}",
            expected="a CUDA device that torch can use",
            given=f"{count} of them",
            fix="use --device cpu, or install a torch built for your GPU",
        )
    return torch.device("cpu") if kind == "cpu" else torch.device("cuda", int(index or 0))
