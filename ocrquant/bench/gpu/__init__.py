"""Everything that only a GPU can tell, in one run of at most ten minutes; ``make gpu``.

Compiles the CUDA library, runs the tests that need a device, holds kernels against the bandwidth of a copy in
the same run, and decodes with pico and with a random model of Qwen3.5-9B shape, one change at a time. Each
measure is a line; what could not be measured says why. Knows the order of sections.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field

from ocrquant.bench.gpu.result import GpuResult, Line, Machine
from ocrquant.bench.gpu.session import CudaTimer, Section, Session, run_sections
from ocrquant.bench.machine import describe_machine
from ocrquant.bench.report import BenchSettings, Report
from ocrquant.errors import DeviceError
from ocrquant.kernels.matmul.arch import arch_of

__all__ = ["SECTIONS", "Settings", "describe_gpu", "render", "run"]

SectionName = Literal[
    "build", "tests", "sanitizer", "bandwidth", "products", "states", "pico", "9b", "flashinfer", "fla"
]

SECTIONS: tuple[SectionName, ...] = (
    "build",
    "tests",
    "bandwidth",
    "states",
    "products",
    "pico",
    "9b",
    "sanitizer",
    "flashinfer",
    "fla",
)
"""In this order: what speed rests on first; what runs nowhere unasked comes last."""

RESULTS = Path(__file__).parents[1] / "results"
_SECTIONS: Mapping[SectionName, tuple[str, str, float]] = {
    "build": ("suites", "build", 0),
    "tests": ("suites", "tests", 20),
    "sanitizer": ("suites", "sanitizer", 30),
    "bandwidth": ("kernels", "bandwidth", 10),
    "products": ("kernels", "products", 20),
    "states": ("kernels", "states", 10),
    "pico": ("decoding", "pico", 40),
    "9b": ("decoding", "nine", 120),
    "flashinfer": ("libraries", "flashinfer", 60),
    "fla": ("libraries", "fla", 180),
}
"""Module and function of each, and the seconds that it needs at least; fla compiles dozens of kernels to
choose among."""


class Settings(BenchSettings):
    """What is run.

    Attributes:
        device: ``cuda:N``.
        sections: In this order.
        seconds: After which no section is begun.
        folder: For the result; None for the one that the project keeps.
    """

    device: str = "cuda:0"
    sections: tuple[SectionName, ...] = SECTIONS
    seconds: Annotated[float, Field(gt=0)] = 540.0
    folder: str | None = None


def run(settings: Settings, repeats: int) -> Report:
    """Runs the sections, shows each line, and writes the result.

    Raises:
        DeviceError: There is no such GPU.
    """
    device = _device(settings.device)
    begin = time.monotonic()
    session = Session(
        device,
        arch_of(device).name,
        CudaTimer(device),
        repeats=repeats,
        deadline=begin + settings.seconds,
    )
    lines = run_sections(session, sections(settings.sections), lambda text: print(text, flush=True))
    result = GpuResult(machine=describe_gpu(device), seconds=time.monotonic() - begin, lines=lines)
    folder = RESULTS if settings.folder is None else Path(settings.folder)
    path = result.write(folder)
    report = Report("gpu", settings, repeats)
    report.results = {"file": str(path), **result.model_dump(mode="json", exclude_none=True)}
    return report


def sections(names: Sequence[SectionName]) -> list[Section]:
    """The sections by name; their modules are loaded only now."""
    found = []
    for name in names:
        module, function, seconds = _SECTIONS[name]
        run_section = getattr(import_module(f"{__name__}.{module}"), function)
        found.append(Section(name, run_section, seconds))
    return found


def render(data: Mapping[str, Any]) -> str:
    """Where the result lies, and how many lines say what; the lines were shown when they came."""
    results = data["results"]
    lines = [Line(**line) for line in results["lines"]]
    missed = [line.render() for line in lines if line.verdict == "missed"]
    missing = sum(line.value is None for line in lines)
    head = f"{len(lines)} lines, {missing} not measured, {len(missed)} missed; {results['seconds']:.0f} s"
    return "\n".join([head, *missed, str(results["file"])])


def describe_gpu(device: torch.device) -> Machine:
    """Facts of a GPU and of what runs on it."""
    properties, host = torch.cuda.get_device_properties(device), describe_machine()
    return Machine(
        device=properties.name,
        arch=arch_of(device).name,
        memory_bytes=properties.total_memory,
        driver=_driver(),
        cuda=torch.version.cuda or "",
        torch=torch.__version__,
        date=str(host["date"]),
        commit=None if host["commit"] is None else str(host["commit"]),
    )


def _driver() -> str:
    from ocrquant.bench.gpu.suites import output_of

    found = output_of(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"])
    return found.splitlines()[0].strip() if found else ""


def _device(name: str) -> torch.device:
    fix = "run it on a machine with a GPU, with the build of torch for it: make venv TORCH=..."
    if not torch.cuda.is_available():
        raise DeviceError("make gpu", expected="a CUDA device", given="none on this machine", fix=fix)
    device = torch.device(name)
    count = torch.cuda.device_count()
    if device.type != "cuda" or (device.index or 0) >= count:
        raise DeviceError("make gpu", expected=f"cuda:0 to cuda:{count - 1}", given=name, fix="name another")
    return device
