"""What a number was measured on: processor, threads, instruction set, versions, date, memory speed."""

from __future__ import annotations

import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import torch

import ocrquant
from ocrquant.kernels.extension import extension
from ocrquant.kernels.read_memory import read_memory

__all__ = ["READ_BYTES", "ReadProbe", "describe_machine"]

READ_BYTES = 1 << 30
"""Three times the largest cache met so far, 300 MiB shared by the cores of a Xeon (family 6 model 207)."""


class ReadProbe:
    """A buffer to read, as an arm beside others.

    Args:
        num_bytes: Its size; at the default every cache is left behind.
    """

    def __init__(self, num_bytes: int = READ_BYTES) -> None:
        # Written once: pages that were never written all map to the same zeros.
        self._data = torch.arange(num_bytes // 8, dtype=torch.int64)
        self._out = torch.zeros(1, dtype=torch.int64)

    @property
    def num_bytes(self) -> int:
        """Bytes that one call reads."""
        return self._data.nbytes

    def __call__(self) -> None:
        """Reads all of it once."""
        read_memory(self._data, self._out)


def describe_machine() -> dict[str, object]:
    """Facts for the head of a result."""
    native = extension()
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "processor": _processor(),
        "cores": None if native is None else native.available_cores(),
        "kernel_threads": None if native is None else native.num_threads(),
        "torch_threads": torch.get_num_threads(),
        "instruction_set": None if native is None else native.isa(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "ocrquant": ocrquant.__version__,
        "commit": _commit(),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    pairs = (line.split(":", 1) for line in lines if ":" in line)
    fields = {name.strip(): value.strip() for name, value in pairs}
    model = " ".join(f"{name} {fields[key]}" for name, key in _MODEL_FIELDS.items() if key in fields)
    return f"{fields.get('model name', platform.processor() or platform.machine())} ({model})"


_MODEL_FIELDS = {"family": "cpu family", "model": "model"}


def _commit() -> str | None:
    """Commit of the checkout that this package is in, with a mark where files differ from it."""
    folder = Path(__file__).resolve().parent
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return process.stdout.strip() or None if process.returncode == 0 else None
