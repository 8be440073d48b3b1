"""Programs: the native calls of a whole step, recorded once and replayed by one call.

What a captured graph is to a GPU. The addresses of a program are fixed; what they hold may change between
runs, and a run may take fewer rows than were recorded. Only native ops are recorded: a reference op inside a
capture is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ocrquant.errors import DeviceError, ShapeError
from ocrquant.kernels.extension import extension, missing_reason
from ocrquant.kernels.selection import note_references

__all__ = ["Program", "capture"]


class Program:
    """A recorded sequence of native calls.

    Args:
        kept: Objects whose memory the calls use; they live as long as the program.
    """

    def __init__(self, *kept: object) -> None:
        module = extension()
        if module is None:
            fix = "reinstall the package with a C++ compiler at hand"
            raise DeviceError("program", expected="the extension", given=missing_reason(), fix=fix)
        self._native: Any = module.Program()
        self._kept = list(kept)

    @property
    def num_launches(self) -> int:
        """Native calls of one run."""
        return len(self._native.names())

    def keep(self, *objects: object) -> None:
        """Keeps more objects alive."""
        self._kept.extend(objects)

    def run(self) -> None:
        """Runs all calls in order; other Python threads go on meanwhile."""
        self._native.run()

    def run_share(self, rows: int, of_rows: int, segments: int) -> None:
        """Runs all calls on the first rows of their memory.

        For programs of ops that go row by row or by whole segments of rows: each call takes the same fraction
        of the rows that it was recorded with, and attention inside segments so many of them.

        Args:
            rows: To take; a call over a fraction of the rows must come out whole.
            of_rows: That were recorded.
            segments: To take.

        Raises:
            ShapeError: More rows than were recorded, or an op that does not go row by row.
        """
        if op := self._native.whole_only():
            fix = "run the program as it was recorded"
            raise ShapeError(f"share of op {op}", expected="ops that go row by row", given=op, fix=fix)
        if not 0 <= rows <= of_rows or of_rows < 1:
            fix = "record a program of more rows"
            raise ShapeError("rows of a run", expected=f"0 to {of_rows}", given=rows, fix=fix)
        self._native.run_share(rows, of_rows, segments)

    def timed_run(self) -> list[tuple[str, float]]:
        """Runs all calls and returns name and seconds of each."""
        return list(zip(self._native.names(), self._native.timed_run(), strict=True))


@contextmanager
def capture(*kept: object) -> Iterator[Program]:
    """Records the native calls of a block instead of running them.

    Args:
        kept: Objects whose memory the calls use.

    Raises:
        DeviceError: There is no extension, captures are nested, or an op inside ran its reference.
    """
    program = Program(*kept)
    module = extension()
    assert module is not None, "Program refuses to be made without it"
    if module.is_recording():
        raise DeviceError("capture", expected="none in progress", given="one", fix="end the other one first")
    module.record(program._native)
    try:
        with note_references() as references:
            yield program
    finally:
        module.record(None)
    for op, choice in references.items():
        raise DeviceError(
            f"op {op} inside a capture",
            expected="a native implementation",
            given=choice.reason,
            fix="run the step without capture",
        )
