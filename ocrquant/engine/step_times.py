"""How long steps take, learned while they run: by rows for drafting and verifying, by requests for the host.

A first time of a shape is left out, since it is recorded then. Between two numbers of rows that were measured
a time lies on the line between them; beyond them it is taken to be what is known nearest by, which is at most
the truth for more rows, so that whoever trusts it tries and learns better. Knows numbers; measures nothing.
"""

from __future__ import annotations

import bisect
from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["LearnedTimes", "StepTime", "StepTimes"]

WEIGHT = 0.1
"""Of a new time in an average."""
MOST_JUMP = 1.5
"""A time counts as at most so many averages: another process took the processor, or memory was made."""
LEAST_SHARE = 0.5
"""Of the time of the nearest number of rows that a step with fewer rows is taken to need at least."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """What one step of answers took.

    Attributes:
        requests: Requests that went on.
        window: Rows of each; 1 without drafts.
        draft_us: Time of the drafter.
        run_us: Time of the target.
        host_us: All other time.
    """

    requests: int
    window: int
    draft_us: float
    run_us: float
    host_us: float

    @property
    def total_us(self) -> float:
        """The whole step."""
        return self.draft_us + self.run_us + self.host_us


class StepTimes(Protocol):
    """Times of steps, however they are known."""

    def step_us(self, requests: int, window: int) -> float | None:
        """Microseconds of a step with so many windows; None where nothing is known."""
        ...

    def note(self, time: StepTime) -> None:
        """Learns from a step."""
        ...


@dataclass(slots=True)
class _Averages:
    """Averages by a number, and a guess between and beyond."""

    values: dict[int, float] = field(default_factory=dict)
    known: list[int] = field(default_factory=list)

    def add(self, number: int, value: float) -> None:
        before = self.values.get(number)
        if before is None:
            bisect.insort(self.known, number)
            self.values[number] = value
        else:
            self.values[number] = before + WEIGHT * (min(value, MOST_JUMP * before) - before)

    def at(self, number: int) -> float | None:
        if not self.known:
            return None
        place = bisect.bisect_left(self.known, number)
        if place == len(self.known):
            return self.values[self.known[-1]]
        above = self.known[place]
        if place == 0:
            share = LEAST_SHARE + (1 - LEAST_SHARE) * number / above
            return self.values[above] * share
        below = self.known[place - 1]
        low, high = self.values[below], self.values[above]
        return low + (high - low) * (number - below) / (above - below)


class LearnedTimes:
    """Exponential averages of the times of steps."""

    def __init__(self) -> None:
        self._run, self._draft, self._host = _Averages(), _Averages(), _Averages()
        self._seen: Counter[tuple[int, int]] = Counter()

    def note(self, time: StepTime) -> None:
        """See `StepTimes`."""
        self._seen[time.requests, time.window] += 1
        if self._seen[time.requests, time.window] == 1:
            return
        rows = time.requests * time.window
        self._run.add(rows, time.run_us)
        self._host.add(time.requests, time.host_us)
        if time.window > 1:
            self._draft.add(rows, time.draft_us)

    def step_us(self, requests: int, window: int) -> float | None:
        """See `StepTimes`."""
        run, host = self._run.at(requests * window), self._host.at(requests)
        if run is None or host is None:
            return None
        draft = self._draft.at(requests * window) or 0.0 if window > 1 else 0.0
        return draft + run + host
