"""What other programs say: nvcc, pytest, compute-sanitizer.

Knows their command lines and how to read what they print.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from ocrquant.bench.gpu.result import Line, not_measured
from ocrquant.bench.gpu.session import Session
from ocrquant.kernels import cuda

__all__ = ["build", "output_of", "sanitizer", "tests"]

_CHECKOUT = Path(__file__).parents[3]
_KERNEL_TESTS = "tests/kernels/cuda"
_COUNT = re.compile(r"(\d+) (passed|failed|skipped|error)")
_SANITIZERS = {"memcheck": 150.0, "racecheck": 60.0, "synccheck": 60.0}
"""Tools of compute-sanitizer, and the most seconds of each."""
_ERRORS = (re.compile(r"ERROR SUMMARY: (\d+) error"), re.compile(r"RACECHECK SUMMARY: (\d+) hazard"))


def build(session: Session) -> Iterator[Line]:
    """Compiles the CUDA library for the device."""
    missing = cuda.missing_compiler(session.arch)
    if missing:
        yield not_measured("build", f"CUDA library for {session.arch}", missing)
        return
    begin = time.monotonic()
    made = cuda.build(session.arch)
    yield Line.of("build", f"CUDA library for {session.arch}", time.monotonic() - begin, "s")
    yield Line.of("build", "kernels", len(made.kernels), note=str(made.path.name))
    count = len(made.kernels)
    spilling = [kernel.name for kernel in made.kernels if kernel.spill_bytes]
    note = ", ".join(spilling)
    yield Line.of("build", "kernels that do not spill", count - len(spilling), at_least=count, note=note)


def tests(session: Session) -> Iterator[Line]:
    """Tests marked ``gpu``: kernels against their references on the device, graphs, no hidden waits."""
    folder = _CHECKOUT / "tests"
    if not folder.is_dir():
        yield not_measured("tests", "tests on the device", "they are not installed; run it in a checkout")
        return
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", str(folder)]
    counts, last = _pytest(command, _limit(session, 240))
    if counts is None:
        yield not_measured("tests", "tests on the device", last)
        return
    ran = counts.get("passed", 0) + counts.get("failed", 0) + counts.get("error", 0)
    note = f"{ran - counts.get('passed', 0)} failed, {counts.get('skipped', 0)} skipped: {last}"
    yield Line.of("tests", "tests that pass", counts.get("passed", 0), at_least=max(ran, 1), note=note)


def sanitizer(session: Session) -> Iterator[Line]:
    """The CUDA kernels under compute-sanitizer: memory accesses, races in shared memory, barriers."""
    program = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    for tool, most in _SANITIZERS.items():
        if program is None:
            yield not_measured("sanitizer", tool, "compute-sanitizer is not installed")
        else:
            yield _sanitized(program, tool, _limit(session, most))


def _sanitized(program: str, tool: str, limit: float) -> Line:
    pytest = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "gpu", "-p", "no:cacheprovider"]
    command = [program, "--tool", tool, "--target-processes", "all", *pytest, str(_CHECKOUT / _KERNEL_TESTS)]
    try:
        process = _run(command, limit)
    except subprocess.TimeoutExpired as error:
        return not_measured("sanitizer", tool, f"not through after {error.timeout:.0f} s")
    said = process.stdout
    found = [int(count) for pattern in _ERRORS for count in pattern.findall(said)]
    last = _last(said)
    if not found:
        return not_measured("sanitizer", tool, f"no summary: {last}")
    counts = {kind: int(number) for number, kind in _COUNT.findall(said)}
    if not counts.get("passed"):
        return not_measured("sanitizer", tool, "no test passed under it")
    note = f"{sum(found)} errors, {counts['passed']} tests passed, {counts.get('failed', 0)} failed"
    return Line.of(
        "sanitizer", f"{tool}, runs without an error", float(sum(found) == 0), at_least=1, note=note
    )


def output_of(command: Sequence[str]) -> str:
    """What a program prints; empty where it is missing or fails."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        process = _run(command, 20)
    except subprocess.TimeoutExpired:
        return ""
    return process.stdout if process.returncode == 0 else ""


def _pytest(command: Sequence[str], limit: float) -> tuple[dict[str, int] | None, str]:
    """Counts by outcome, and the last line; None for the counts where there are none."""
    try:
        process = _run(command, limit)
    except subprocess.TimeoutExpired as error:
        return None, f"not through after {error.timeout:.0f} s"
    last = _last(process.stdout)
    counts = {kind: int(number) for number, kind in _COUNT.findall(last)}
    return (counts or None), last


def _run(command: Sequence[str], limit: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=_CHECKOUT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=limit,
        check=False,
    )


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip("= ") if lines else "nothing was printed"


def _limit(session: Session, most: float) -> float:
    return max(1.0, min(most, session.seconds_left))
