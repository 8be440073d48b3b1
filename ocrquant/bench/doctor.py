"""What runs on a machine, and why: versions, devices, and for every op and product who computes it.

Asks what is installed and reads the tables of `ocrquant.kernels`; computes nothing. A GPU that is not here
can be asked about by its architecture.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import ocrquant
from ocrquant import kernels
from ocrquant.bench.machine import describe_machine
from ocrquant.errors import DeviceError
from ocrquant.kernels import cuda
from ocrquant.kernels.extension import extension, missing_reason
from ocrquant.kernels.gated_delta_rows.chunked import CHUNK_ROWS
from ocrquant.kernels.libraries import LIBRARIES, obstacle
from ocrquant.kernels.matmul.arch import ARCHES, Arch, arch_of
from ocrquant.kernels.matmul.table import FORMS, RULES, SMALL_ROWS, Product, choose, refusals
from ocrquant.kernels.selection import CUDA_OPS, TRITON_OPS

__all__ = ["examine", "render"]

_PACKAGES = ("torch", "triton", *(library.package for library in LIBRARIES.values()), "transformers")
_OUTPUTS, _INPUTS = 4096, 4096
"""A product of usual size; what a rule takes is said beside it."""


def examine(arch: str | None = None) -> dict[str, Any]:
    """Facts and tables as plain data.

    Args:
        arch: Architecture whose tables are wanted, a key of `ARCHES`; None for that of the GPU here, or for
            the CPU where there is none.

    Raises:
        DeviceError: There is no such architecture.
    """
    if arch is not None and arch not in ARCHES:
        fix = "correct the name"
        raise DeviceError("--arch", expected=f"one of {', '.join(ARCHES)}", given=arch, fix=fix)
    here = arch_of(torch.device("cuda:0")) if torch.cuda.is_available() else None
    asked = ARCHES[arch] if arch is not None else here
    return {
        "versions": {"ocrquant": ocrquant.__version__, "python": platform.python_version()}
        | {name: _version(name) for name in _PACKAGES},
        "devices": _devices(here),
        "for": "CPU" if asked is None else f"{asked.name} ({asked.machines})",
        "ops": _cpu_ops() if asked is None else _gpu_ops(asked),
        "products": [] if asked is None else list(_products(asked)),
    }


def render(found: Mapping[str, Any]) -> str:
    """The same as text."""
    lines = ["versions", *_aligned(found["versions"].items()), "", "devices"]
    lines += [*_aligned(found["devices"].items()), "", f"ops on {found['for']}"]
    lines += _aligned((entry["op"], entry["by"], entry["reason"]) for entry in found["ops"])
    if found["products"]:
        lines += ["", f"products on {found['for']}, rows x weight -> result"]
        rows = [
            (e["product"], e["by"], e["reason"], e["takes"] or "any shape", _not(e["not_by"]))
            for e in found["products"]
        ]
        lines += _aligned(rows)
    return "\n".join(lines)


def _not(refused: Mapping[str, str]) -> str:
    return "; ".join(f"not {name}: {why}" for name, why in refused.items())


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _devices(here: Arch | None) -> dict[str, str]:
    host = describe_machine()
    native = extension()
    found = {
        "cpu": str(host["processor"]),
        "native kernels": missing_reason() if native is None else str(host["instruction_set"]),
    }
    if here is None:
        found["gpu"] = f"none (torch {torch.__version__})"
    else:
        properties = torch.cuda.get_device_properties(0)
        found["gpu"] = f"{properties.name}, {here.name}, {properties.total_memory / 2**30:.0f} GiB"
    for name in cuda.ARCHITECTURES:
        found[f"nvcc for {name}"] = cuda.missing_compiler(name) or "there"
    return found


def _op_names() -> list[str]:
    """Ops with a definition."""
    folder = Path(kernels.__file__).parent
    return sorted(path.parent.name for path in folder.glob("*/reference.py"))


def _cpu_ops() -> list[dict[str, str]]:
    why = missing_reason() if extension() is None else ""
    by = "reference" if why else "native"
    reason = why or "C++ in bf16; other dtypes run the reference"
    return [{"op": name, "by": by, "reason": reason} for name in _op_names()]


def _gpu_ops(arch: Arch) -> list[dict[str, str]]:
    has_triton = _version("triton") != "not installed"
    folders = {module.split(".")[-2] for module in TRITON_OPS.values()}
    in_cuda = {TRITON_OPS[op].split(".")[-2] for op in CUDA_OPS if op in TRITON_OPS}
    found = []
    for name in _op_names():
        if name == "linear":
            by, reason = "library", "see the products below"
        elif name in folders and has_triton:
            by, reason = "triton", f"compiled for {arch.name} at its first call"
            if name in in_cuda and arch.name in cuda.ARCHITECTURES:
                reason += "; in CUDA C++ with OCRQUANT_KERNELS=cuda"
        elif name in folders:
            by, reason = "reference", "Triton is not installed: pip install 'ocrquant[cuda]'"
        else:
            by, reason = "reference", "plain torch"
        if name == "gated_delta_rows":
            reason += f"; {CHUNK_ROWS} rows or more of one prompt by fla: {obstacle('fla') or 'asked for'}"
        found.append({"op": name, "by": by, "reason": reason})
    return found


def _products(arch: Arch) -> Iterable[dict[str, Any]]:
    """Every form and result; with few rows as well where some rule is for these."""
    few = {rule.form for rule in RULES if rule.small_only}
    for form in FORMS:
        for is_wide in (False, True):
            for is_small in (False, True) if form in few else (False,):
                # What this package exports: parts that are merged share their global scale in NVFP4 only.
                is_uniform = form.startswith("nvfp4")
                product = Product(form, _OUTPUTS, _INPUTS, is_wide, is_small, is_uniform)
                rule = choose(product, arch)
                rows = f", {SMALL_ROWS} rows at most" if is_small else ""
                yield {
                    "product": f"{form} -> {'float32' if is_wide else 'bf16'}{rows}",
                    "by": rule.implementation,
                    "reason": rule.reason,
                    "takes": rule.takes,
                    "not_by": {other.implementation: why for other, why in refusals(product, arch)},
                }


def _aligned(rows: Iterable[Sequence[str]]) -> list[str]:
    every = [tuple(map(str, row)) for row in rows]
    widths = [max(len(row[column]) for row in every) for column in range(len(every[0]))]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in every
    ]
