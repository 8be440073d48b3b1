"""How much memory a machine has to give, and how much this process takes.

Knows /proc and control groups. Knows nothing of models.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

__all__ = ["available_bytes", "resident_bytes"]

_STATUS = Path("/proc/self/status")
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def available_bytes(device: torch.device) -> int:
    """Memory that is free on a device, shared with the other processes of a run on this machine."""
    if device.type == "cuda":
        free: int = torch.cuda.mem_get_info(device)[0]
        return free
    return min(_free_of_machine(), _free_of_cgroup()) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def resident_bytes(field: str = "VmRSS") -> int:
    """Memory of this process: now (``VmRSS``), or at most so far (``VmHWM``); 0 where nothing says it."""
    try:
        lines = _STATUS.read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))
    except (OSError, ValueError, StopIteration):
        return 0


def _free_of_machine() -> int:
    try:
        fields = dict(line.split(":", 1) for line in _MEMINFO.read_text(encoding="ascii").splitlines())
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        # Other systems than Linux: half of what is built in.
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _free_of_cgroup() -> int:
    """What a container may still take (cgroup v2); page cache counts as free."""
    try:
        limit = int((_CGROUP / "memory.max").read_text(encoding="ascii"))
        used = int((_CGROUP / "memory.current").read_text(encoding="ascii"))
        stat = dict(line.split() for line in (_CGROUP / "memory.stat").read_text("ascii").splitlines())
        return limit - used + int(stat.get("file", 0))
    except (OSError, ValueError):  # no limit reads "max"
        return 1 << 62
