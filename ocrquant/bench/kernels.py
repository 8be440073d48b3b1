"""Kernels in Triton compiled for GPUs that need not be there: registers, spills and instructions.

Compiles what the engine would launch for a model of Qwen3.5-9B shape. Nothing is run and nothing is timed.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Annotated, Any

from pydantic import Field

from ocrquant.bench.report import BenchSettings, Goal, Report
from ocrquant.errors import DeviceError, RecipeError

__all__ = ["Settings", "compiled", "render", "run"]

_TITLES = ("call", "kernel", "registers", "stack", "shared", "warps")


class Settings(BenchSettings):
    """What is compiled.

    Attributes:
        archs: Architectures: 90 is an H200, 100 a B200, 120 an RTX PRO 6000.
        ops: Only calls whose name begins with one of these; all when left out.
    """

    archs: tuple[Annotated[int, Field(ge=90)], ...] = (90, 100)
    ops: tuple[str, ...] = ()


def run(settings: Settings, repeats: int) -> Report:
    """Compiles every kernel for every architecture."""
    report = Report("kernels", settings, None)
    report.results = {f"sm_{arch}a": compiled(arch, settings.ops) for arch in settings.archs}
    builds = [build for calls in report.results.values() for builds in calls.values() for build in builds]
    spilled = sum(build["stack_bytes"] > 0 for build in builds)
    report.goals = [Goal("kernels that spill registers", float(spilled), at_most=0.0)]
    report.notes = [
        "registers of a thread and bytes of its local memory, in which spilled registers lie, as cuobjdump "
        "reports them; instructions as they are in the PTX",
        "nothing was run: no time and no bandwidth is measured",
    ]
    return report


def compiled(arch: int, ops: tuple[str, ...] = ()) -> dict[str, list[dict[str, Any]]]:
    """What one architecture's builds take, by call.

    Raises:
        DeviceError: Triton is not installed, or runs as an interpreter.
        RecipeError: No call's name begins with one of `ops`.
    """
    if find_spec("triton") is None:
        fix = "pip install 'ocrquant[cuda]'"
        raise DeviceError("Triton's compiler", expected="triton 3.9", given="not installed", fix=fix)
    from ocrquant.kernels.triton_common.catalogue import CALLS, recorded
    from ocrquant.kernels.triton_common.compiled import compile_launch

    names = [name for name in CALLS if not ops or name.startswith(ops)]
    if not names:
        raise RecipeError("ops", expected=f"the beginning of one of {', '.join(CALLS)}", given=", ".join(ops))
    return {name: [compile_launch(noted, arch).as_json() for noted in recorded(name, arch)] for name in names}


def render(result: Mapping[str, Any]) -> str:
    """One table an architecture."""
    tables = []
    for arch, calls in result["results"].items():
        rows = [_cells(name, build) for name, builds in sorted(calls.items()) for build in builds]
        names = list(next(iter(calls.values()))[0]["instructions"])
        widths = [max(map(len, column)) for column in zip((*_TITLES, *names), *rows, strict=True)]
        lines = [
            "  ".join(
                cell.ljust(width) if i < 2 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in ((*_TITLES, *names), *rows)
        ]
        tables.append("\n".join((arch, *lines)))
    return "\n\n".join((*tables, *(f"- {note}" for note in result["notes"])))


def _cells(name: str, build: Mapping[str, Any]) -> tuple[str, ...]:
    numbers = (build[key] for key in ("registers", "stack_bytes", "shared_bytes", "num_warps"))
    return (name, build["kernel"], *map(str, numbers), *map(str, build["instructions"].values()))
