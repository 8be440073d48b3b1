"""How many rows the windows of a step have: those that emit most tokens in its time.

``tokens/s = E / (t_draft + t_verify + t_host)`` with ``E = 1 + s_1 + ... + s_{T-1}``, where s_j is the chance
that the first j drafts are accepted, as measured so far. The more requests a step has, the more its rows cost
and the shorter the windows; where no window pays, steps have single rows, and now and then windows are tried
again. What is read is the same whatever is decided. Knows chances and times; knows no request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ocrquant.engine.step_times import LearnedTimes, StepTime, StepTimes

__all__ = ["AcceptanceByPosition", "FixedWindow", "MeasuredWindow", "WindowPolicy", "candidates"]

MEMORY = 0.98
"""What is left of the weight of a window when the next one is counted: about the last fifty count."""
PRIOR_WINDOWS = 4.0
"""Windows that the prior counts as."""
PRIOR_CHANCE = 0.8
"""Of a draft to be accepted after an accepted one, where nobody has said another."""
BETTER = 1.03
"""How much better another window has to be to take the place of the one in use."""
CHOICE_STEPS = 8
"""Steps for which a choice holds: weighing all windows takes as long as a step's other work on the host."""
RETRY_STEPS = 128
"""Steps after which another window is tried, for what was measured long ago."""
FIRST_TRIAL = 16
"""The step in which single rows are tried for the first time, so that it is known what drafts gain."""
TRY_STEPS = 3
"""Steps of a trial; the first of a shape tells nothing."""
WORTH_TRYING = 0.5
"""A window with less than so much of the best rate is not tried again; single rows always are."""


class WindowPolicy(Protocol):
    """Decides how many rows windows have."""

    def rows(self, requests: int) -> int:
        """Rows of each window in a step with so many requests; 1: no drafts."""
        ...

    def note(self, time: StepTime, accepted: Sequence[int]) -> None:
        """Learns from a step.

        Args:
            time: Its requests and times.
            accepted: Drafts that were accepted, for each window whose drafts were all guessed.
        """
        ...


class FixedWindow:
    """Always the same number of rows.

    Args:
        rows: Of each window.
    """

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def rows(self, requests: int) -> int:
        """See `WindowPolicy`."""
        return self._rows

    def note(self, time: StepTime, accepted: Sequence[int]) -> None:
        """See `WindowPolicy`; nothing is learned."""


class AcceptanceByPosition:
    """Chances that drafts are accepted, each after those before it.

    Kept apart by position, so that short windows tell of the first drafts and nothing wrong of the others.

    Args:
        most: Drafts of the longest window.
        prior: Chances that the first 1, 2, ... drafts are accepted, falling; None for `PRIOR_CHANCE` after
            each accepted one.
    """

    def __init__(self, most: int, prior: Sequence[float] | None = None) -> None:
        known = list(prior or ())[:most]
        before = [1.0, *known]
        chances = [after / one if one > 0 else 0.0 for one, after in zip(before, known, strict=False)]
        chances += [chances[-1] if chances else PRIOR_CHANCE] * (most - len(chances))
        self._trials = [PRIOR_WINDOWS] * most
        self._accepted = [PRIOR_WINDOWS * chance for chance in chances]

    def note(self, drafted: int, accepted: int) -> None:
        """Counts one window.

        Args:
            drafted: Its drafts.
            accepted: Those that were accepted, from the first on.
        """
        for place in range(min(accepted + 1, drafted)):
            self._trials[place] = MEMORY * self._trials[place] + 1.0
            self._accepted[place] = MEMORY * self._accepted[place] + (place < accepted)

    def survival(self, drafted: int) -> list[float]:
        """Chances that the first 1, 2, ... of so many drafts are accepted."""
        found, chance = [], 1.0
        for place in range(drafted):
            chance *= self._accepted[place] / self._trials[place]
            found.append(chance)
        return found

    def tokens(self, window: int) -> float:
        """Tokens that a window of so many rows emits on average."""
        return 1.0 + sum(self.survival(window - 1))


def candidates(most: int) -> tuple[int, ...]:
    """Windows worth a choice, up to `most` rows: every step is a program of its own, so there are few."""
    return tuple(
        sorted({rows for rows in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64) if rows <= most} | {most})
    )


class MeasuredWindow:
    """The window with the best rate by what was measured.

    Args:
        most: Rows of the longest window.
        times: Of steps; None learns them.
        prior: See `AcceptanceByPosition`.

    Attributes:
        acceptance: Of drafts so far.
        times: Of steps so far.
    """

    def __init__(
        self, most: int, times: StepTimes | None = None, prior: Sequence[float] | None = None
    ) -> None:
        self.acceptance = AcceptanceByPosition(most - 1, prior)
        self.times = LearnedTimes() if times is None else times
        self._candidates = candidates(most)
        self._in_use: dict[int, int] = {}
        self._steps: dict[int, int] = {}
        self._last_used: dict[tuple[int, int], int] = {}
        self._trial: dict[int, tuple[int, int]] = {}

    def rate(self, requests: int, window: int) -> float | None:
        """Tokens a microsecond and request; None where no time is known."""
        time_us = self.times.step_us(requests, window)
        return None if not time_us else self.acceptance.tokens(window) / time_us

    def rows(self, requests: int) -> int:
        """See `WindowPolicy`."""
        step = self._steps[requests] = self._steps.get(requests, 0) + 1
        used = self._in_use.get(requests)
        chosen = self._best(requests) if used is None or step % CHOICE_STEPS == 0 else used
        trial, left = self._trial.get(requests, (0, 0))
        if left == 0 and step == FIRST_TRIAL:
            trial, left = 1, TRY_STEPS
        elif left == 0 and step % RETRY_STEPS == 0:
            trial, left = self._oldest(requests, chosen), TRY_STEPS
        if left:
            self._trial[requests] = (trial, left - 1)
            chosen = trial
        else:
            self._in_use[requests] = chosen
        self._last_used[requests, chosen] = step
        return chosen

    def note(self, time: StepTime, accepted: Sequence[int]) -> None:
        """See `WindowPolicy`."""
        self.times.note(time)
        for count in accepted:
            self.acceptance.note(time.window - 1, count)

    def _best(self, requests: int) -> int:
        """The best window, or the one in use where that is nearly as good."""
        rates = {window: self.rate(requests, window) for window in self._candidates}
        known = {window: rate for window, rate in rates.items() if rate is not None}
        if not known:
            return self._candidates[-1]
        # Among equals the shorter one.
        best = max(known, key=lambda window: (known[window], -window))
        used = self._in_use.get(requests)
        return used if used is not None and known[best] < BETTER * known[used] else best

    def _oldest(self, requests: int, chosen: int) -> int:
        """Of the windows that may turn out to be better, the one that was used longest ago."""
        best = self.rate(requests, chosen) or 0.0
        others = [window for window in self._candidates if window != chosen]
        worth = [w for w in others if w == 1 or (self.rate(requests, w) or 0.0) >= WORTH_TRYING * best]
        if chosen == 1:  # drafts do not pay: how good they are is known from trials alone
            worth = worth or [max(others, key=lambda w: self.rate(requests, w) or 0.0)] if others else []
        return min(worth, key=lambda w: self._last_used.get((requests, w), 0), default=chosen)
