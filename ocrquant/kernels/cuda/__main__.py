"""``python -m ocrquant.kernels.cuda [ARCHITECTURE ...]``: compiles the kernels and prints what they need.

Needs nvcc and no GPU. Ends with code 1 where a kernel spills registers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ocrquant.errors import OcrQuantError
from ocrquant.kernels.cuda.compiler import ARCHITECTURES, Build, build

_COLUMNS = ("architecture", "kernel", "registers", "spilled", "shared", "instructions")


def rows(compiled: Build) -> list[tuple[str, ...]]:
    """One line a kernel, in the order of the columns; spills and shared memory in bytes."""
    return [
        (
            compiled.architecture,
            kernel.name,
            str(kernel.registers),
            str(kernel.spill_bytes),
            str(kernel.shared_bytes),
            ", ".join(f"{count} x {name}" for name, count in kernel.instructions.items()),
        )
        for kernel in compiled.kernels
    ]


def table(lines: Sequence[tuple[str, ...]]) -> str:
    """Lines under the columns' names, numbers on the right."""
    whole = [_COLUMNS, *lines]
    widths = [max(len(line[i]) for line in whole) for i in range(len(_COLUMNS))]
    texts = []
    for line in whole:
        cells = [
            c.rjust(w) if 2 <= i <= 4 else c.ljust(w)
            for i, (c, w) in enumerate(zip(line, widths, strict=True))
        ]
        texts.append("  ".join(cells).rstrip())
    return "\n".join(texts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m ocrquant.kernels.cuda", description=__doc__)
    parser.add_argument("architectures", nargs="*", default=list(ARCHITECTURES), metavar="ARCHITECTURE")
    try:
        builds = [build(name) for name in parser.parse_args(arguments).architectures]
    except OcrQuantError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(table([line for compiled in builds for line in rows(compiled)]))
    return int(any(kernel.spill_bytes for compiled in builds for kernel in compiled.kernels))


if __name__ == "__main__":
    sys.exit(main())
