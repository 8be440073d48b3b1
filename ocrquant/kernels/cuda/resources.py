"""What ptxas says of each kernel, and which instructions its PTX has; kept beside a library as JSON.

`-Xptxas -v` prints registers, stack, spills and shared memory by kernel; the instructions that a kernel was
written for are counted in its PTX. Knows the compiler's words; knows no kernels.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["INSTRUCTIONS", "KernelResources", "read_resources", "write_resources"]

INSTRUCTIONS = {
    "load 16 bytes": r"\bld\.global[\w.:]*\.v4\.(?:[ufb]32)\b",
    "to E4M3": r"\bcvt\.rn\.satfinite\.e4m3x2\.f32\b",
    "to E2M1": r"\bcvt\.rn\.satfinite\.e2m1x2\.f32\b",
    "tensor product": r"\bmma\.sync\.aligned\.m16n8k16\b",
}
"""Name to pattern in PTX."""

_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_BODY = re.compile(r"\.entry (\w+)\(.*?^\{(.*?)^\}", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class KernelResources:
    """One kernel of one architecture.

    Attributes:
        name: As written in C++, arguments left out.
        registers: A thread.
        stack_bytes: A thread.
        spill_bytes: Stores and loads that the compiler added for want of registers, a thread.
        shared_bytes: A block, dynamic shared memory left out.
        instructions: How often its PTX has each of `INSTRUCTIONS`; those that it lacks are left out.
    """

    name: str
    registers: int
    stack_bytes: int
    spill_bytes: int
    shared_bytes: int
    instructions: dict[str, int]


def write_resources(path: Path, compiler_said: str, ptx: str) -> None:
    """Reads ptxas's words and the PTX of one build and writes them as JSON."""
    found = parse_resources(compiler_said, ptx)
    path.write_text(json.dumps([asdict(kernel) for kernel in found], indent=1) + "\n")


def read_resources(path: Path) -> tuple[KernelResources, ...]:
    """The inverse of `write_resources`."""
    return tuple(KernelResources(**row) for row in json.loads(path.read_text()))


def parse_resources(compiler_said: str, ptx: str) -> list[KernelResources]:
    """Kernels in the order of their names."""
    bodies = dict(_BODY.findall(ptx))
    pieces = _ENTRY.split(compiler_said)[1:]
    symbols, words = pieces[0::2], pieces[1::2]
    found = []
    for symbol, name, said in zip(symbols, _demangled(symbols), words, strict=True):
        stack, used, shared = _STACK.search(said), _USED.search(said), _SHARED.search(said)
        assert stack is not None, said
        assert used is not None, said
        counts = Counter(
            {kind: len(re.findall(pattern, bodies.get(symbol, ""))) for kind, pattern in INSTRUCTIONS.items()}
        )
        found.append(
            KernelResources(
                name=name,
                registers=int(used[1]),
                stack_bytes=int(stack[1]),
                spill_bytes=int(stack[2]) + int(stack[3]),
                shared_bytes=int(shared[1]) if shared else 0,
                instructions=dict(+counts),
            )
        )
    return sorted(found, key=lambda kernel: kernel.name)


def _demangled(symbols: list[str]) -> list[str]:
    """Names as C++ writes them; the symbols themselves where no c++filt is."""
    tool = shutil.which("c++filt")
    if tool is None or not symbols:
        return symbols
    done = subprocess.run([tool], input="\n".join(symbols), capture_output=True, text=True, check=True)
    return [re.sub(r"^(?:void )?|ocrquant::|\(.*$", "", line) for line in done.stdout.splitlines()]
