"""One run on a GPU: sections one after another, each within what is left of the time, none lost by another.

A section gives lines as it goes. One that fails, for which no time is left, or that takes longer than what is
left, leaves a line that says so.
Knows clocks and sections; does not know what they measure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from ocrquant.bench.gpu.result import Line, not_measured
from ocrquant.bench.timing import MIN_REPEATS, Estimate, interleave, median_interval

__all__ = ["CudaTimer", "Section", "Session", "Timer"]

Arms = dict[str, Callable[[], object]]


class Timer(Protocol):
    """Times kernels against each other."""

    def measure(self, arms: Arms, repeats: int) -> dict[str, list[float]]:
        """Seconds of every repeat of every arm, interleaved."""
        ...


class CudaTimer:
    """Events around every call, with the second-level cache emptied before it.

    Args:
        device: The GPU.
        flush_bytes: Written before every call; more than any such cache holds (126 MB on a B200).
    """

    def __init__(self, device: torch.device, flush_bytes: int = 256 << 20) -> None:
        self._device = device
        self._flush = torch.empty(flush_bytes, dtype=torch.uint8, device=device)

    def measure(self, arms: Arms, repeats: int) -> dict[str, list[float]]:
        """See `Timer`."""
        events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in arms}

        def timed(name: str) -> Callable[[], object]:
            def call() -> None:
                pair = (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
                pair[0].record()
                arms[name]()
                pair[1].record()
                events[name].append(pair)

            return call

        interleave({name: timed(name) for name in arms}, repeats=repeats, before=self._flush.zero_)
        torch.cuda.synchronize(self._device)
        return {
            name: [begin.elapsed_time(end) / 1e3 for begin, end in pairs[-repeats:]]
            for name, pairs in events.items()
        }


@dataclass(slots=True)
class Session:
    """What sections share.

    Attributes:
        device: The GPU.
        arch: Its architecture.
        timer: Of kernels.
        repeats: Of every arm.
        deadline: When all sections should be through, on the clock.
        clock: In seconds.
        found: Numbers that later sections need, such as the bandwidth of copies.
    """

    device: torch.device
    arch: str
    timer: Timer
    repeats: int = MIN_REPEATS
    deadline: float = float("inf")
    clock: Callable[[], float] = time.monotonic
    found: dict[str, float] = field(default_factory=dict)

    @property
    def seconds_left(self) -> float:
        """Until the deadline; below zero behind it."""
        return self.deadline - self.clock()

    def time(self, arms: Arms) -> dict[str, Estimate]:
        """Seconds of kernels."""
        measured = self.timer.measure(arms, self.repeats)
        return {name: median_interval(seconds) for name, seconds in measured.items()}


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the run.

    Attributes:
        name: Of its lines.
        run: Gives its lines.
        seconds: What it needs at least; with less left it is not begun.
    """

    name: str
    run: Callable[[Session], Iterator[Line]]
    seconds: float = 0.0


def run_sections(
    session: Session, sections: Sequence[Section], show: Callable[[str], None] = print
) -> list[Line]:
    """All lines of all sections; each is shown when it is there."""
    lines: list[Line] = []

    def keep(line: Line) -> None:
        lines.append(line)
        show(line.render())

    for section in sections:
        if session.seconds_left < section.seconds:
            left = max(0.0, session.seconds_left)
            reason = f"{left:.0f} s of the time are left and it needs {section.seconds:.0f}"
            keep(not_measured(section.name, "everything", reason))
            continue
        try:
            for line in section.run(session):
                keep(line)
                if session.seconds_left < 0:
                    keep(not_measured(section.name, "whatever follows", "the time of the run is over"))
                    break
        except Exception as error:
            # Whatever one part meets, the others are worth having.
            keep(not_measured(section.name, "the rest", f"{type(error).__name__}: {error}"))
    return lines
