"""Ahead-of-time compilation of recorded launches: registers, spills and instructions without a GPU.

Takes what `launch.recording` noted, so that what is compiled here is what a GPU would be given. Knows
Triton's compiler and its tools; knows no op.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import create_function_from_signature

from ocrquant.errors import DeviceError
from ocrquant.kernels.triton_common.launch import Launch

__all__ = ["INSTRUCTIONS", "Build", "compile_launch"]

INSTRUCTIONS: Mapping[str, str] = {
    "cvt.rn.satfinite.e2m1x2": r"cvt\.rn\.satfinite\.e2m1x2\.f32",
    "cvt.rn.satfinite.e4m3x2": r"cvt\.rn\.satfinite\.e4m3x2\.f32",
    "16-byte loads": r"ld\.global\S*\.v4\.b32|ld\.global\S*\.v2\.b64|ld\.global\S*\.v8\.b32",
    "mma": r"mma\.sync|wgmma\.mma_async|tcgen05\.mma",
}
"""What is counted in the PTX, by name."""

_RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")


@dataclass(frozen=True, slots=True)
class Build:
    """One kernel compiled for one architecture.

    Attributes:
        kernel: Its name.
        arch: 90, 100 and so on.
        registers: Of a thread.
        stack_bytes: Of a thread's local memory: spilled registers lie there.
        shared_bytes: Of a program.
        num_warps: Of a program.
        instructions: How often each of `INSTRUCTIONS` is in the PTX.
    """

    kernel: str
    arch: int
    registers: int
    stack_bytes: int
    shared_bytes: int
    num_warps: int
    instructions: Mapping[str, int]

    def as_json(self) -> dict[str, Any]:
        """Everything as plain data."""
        return asdict(self) | {"instructions": dict(self.instructions)}


def compile_launch(noted: Launch, arch: int) -> Build:
    """Compiles one recorded launch; Triton keeps what it compiled before.

    Raises:
        DeviceError: Triton runs as an interpreter, or its tool does not say what a kernel takes.
    """
    if knobs.runtime.interpret:
        given, fix = "TRITON_INTERPRET=1", "unset it"
        raise DeviceError("Triton's compiler", expected="kernels that are compiled", given=given, fix=fix)
    target = GPUTarget("cuda", arch, 32)
    backend = make_backend(target)
    bind = create_function_from_signature(noted.kernel.signature, noted.kernel.params, backend)
    wanted = {"num_warps": noted.num_warps, "enable_fp_fusion": noted.fuses}
    bound, specialization, _ = bind(*noted.arguments, **noted.constants, **wanted)
    options, signature, constants, attributes = noted.kernel._pack_args(
        backend, wanted | dict(noted.constants), bound, specialization, wanted
    )
    source = ASTSource(noted.kernel, signature, constants, attributes)
    built = triton.compile(source, target=target, options=options.__dict__)
    registers, stack, _, local = _resources(built.asm["cubin"])
    ptx = built.asm["ptx"]
    return Build(
        kernel=noted.kernel.__name__,
        arch=arch,
        registers=registers,
        stack_bytes=stack + local,
        shared_bytes=built.metadata.shared,
        num_warps=noted.num_warps,
        instructions={name: len(re.findall(pattern, ptx)) for name, pattern in INSTRUCTIONS.items()},
    )


def _resources(cubin: bytes) -> tuple[int, ...]:
    """Registers, stack, shared and local bytes of the one kernel in a cubin."""
    with tempfile.TemporaryDirectory(prefix="ocrquant-") as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(path)]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
    found = _RESOURCES.search(process.stdout)
    if found is None:
        raise DeviceError(
            "cuobjdump",
            expected="a line with REG, STACK, SHARED and LOCAL",
            given=(process.stderr or process.stdout).strip()[-200:] or "nothing",
            fix="install the version of Triton that pyproject.toml names",
        )
    return tuple(int(number) for number in found.groups())
