"""What a step did, and what guessing brought: tokens a step, by position, times, and the speed-up of both.

Expected: ``E / ((t_draft + t_verify + t_host) / t_plain)`` with ``E = 1 + s_1 + ... + s_{T-1}``, s_j the
chance that the first j guesses are accepted; chances of neighbours are not alike, so no 1 / (1 - a) stands
for it. Measured: tokens a second of steps with windows over those of steps without, in the same run and with
as many requests. Knows counts and times; knows no tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ocrquant.engine.plan import PlanShape
from ocrquant.engine.request import DraftCounts
from ocrquant.engine.step_times import StepTime

__all__ = ["DecodeStatistics", "SpeedUp", "StepStatistics"]


@dataclass(frozen=True, slots=True)
class StepStatistics:
    """What one step did.

    Attributes:
        shape: Rows and requests by class.
        num_running: Requests that go on after it.
        num_waiting: Requests in the queue after it.
        num_preemptions: Requests that lost their pages in it.
        num_prefix_hits: Requests that entered in it with a kept prefix.
        free_pages: Pages that every paged cache could still give after it.
        schedule_us: Time to decide, that of guessing left out.
        draft_us: Time to guess.
        run_us: Time of the runner.
        postprocess_us: Time to handle its tokens.
    """

    shape: PlanShape
    num_running: int
    num_waiting: int
    num_preemptions: int
    num_prefix_hits: int
    free_pages: int
    schedule_us: float
    draft_us: float
    run_us: float
    postprocess_us: float


@dataclass(slots=True)
class _Steps:
    """Steps of one number of requests and one window.

    Attributes:
        count: How many.
        tokens: That they emitted.
        draft_us: In the drafter.
        run_us: In the target.
        host_us: Elsewhere.
    """

    count: int = 0
    tokens: int = 0
    draft_us: float = 0.0
    run_us: float = 0.0
    host_us: float = 0.0

    @property
    def mean_us(self) -> float:
        return (self.draft_us + self.run_us + self.host_us) / self.count


@dataclass(frozen=True, slots=True)
class SpeedUp:
    """Speed of steps with windows over that of steps without.

    Attributes:
        expected: From chances by position and mean times.
        measured: From the tokens that were emitted.
    """

    expected: float
    measured: float


@dataclass(slots=True)
class DecodeStatistics:
    """Steps of answers alone; those that also read a part of a prompt are left out of times.

    Attributes:
        drafts: What came of all guesses.
        flushes: Folds of ReplaySSM's records in steps that count; 0 with other states.
    """

    drafts: DraftCounts = field(default_factory=DraftCounts)
    flushes: int = 0
    _steps: dict[tuple[int, int], _Steps] = field(default_factory=dict)
    _seen: set[tuple[int, int]] = field(default_factory=set)

    def note(self, time: StepTime, tokens: int) -> None:
        """Counts a step, but for the first of its kind, which is recorded on the way.

        Args:
            time: Its requests and times.
            tokens: That it emitted.
        """
        kind = time.requests, time.window
        if kind not in self._seen:
            self._seen.add(kind)
            return
        steps = self._steps.setdefault(kind, _Steps())
        steps.count += 1
        steps.tokens += tokens
        steps.draft_us += time.draft_us
        steps.run_us += time.run_us
        steps.host_us += time.host_us

    def shares(self) -> dict[str, float]:
        """Microseconds of a step with windows: ``draft``, ``verify``, ``host``; empty without any."""
        steps = [found for (_, window), found in self._steps.items() if window > 1]
        count = sum(found.count for found in steps)
        if not count:
            return {}
        sums = {"draft": "draft_us", "verify": "run_us", "host": "host_us"}
        return {name: sum(getattr(s, key) for s in steps) / count for name, key in sums.items()}

    def flush_rate(self) -> float:
        """Folds of records for each request and step with windows; 0 where no state has records."""
        windows = sum(n * s.count for (n, window), s in self._steps.items() if window > 1)
        return self.flushes / windows if windows else 0.0

    def speed_up(self) -> SpeedUp | None:
        """Of steps with windows, each against steps without of as many requests, weighted by their time.

        None where there are no such steps.
        """
        survival, expected, measured, weight = self.drafts.survival, 0.0, 0.0, 0.0
        for (requests, window), steps in self._steps.items():
            plain = self._steps.get((requests, 1))
            if window == 1 or plain is None:
                continue
            relative, time = steps.mean_us / plain.mean_us, steps.mean_us * steps.count
            expected += time * (1 + sum(survival[: window - 1])) / relative
            measured += time * steps.tokens / (requests * steps.count) / relative
            weight += time
        return SpeedUp(expected / weight, measured / weight) if weight else None

    def record(self) -> dict[str, Any]:
        """For JSON."""
        speed_up = self.speed_up()
        return {
            "windows": self.drafts.num_windows,
            "tokens_a_step": self.drafts.tokens_a_step if self.drafts.num_windows else None,
            "tokens_a_step_alone": self.drafts.tokens_alone if self.drafts.num_windows else None,
            "survival": self.drafts.survival,
            "step_us": self.shares(),
            "flush_rate": self.flush_rate(),
            "steps": {f"{n} requests, window {w}": s.count for (n, w), s in sorted(self._steps.items())},
            "speed_up": None
            if speed_up is None
            else {"expected": speed_up.expected, "measured": speed_up.measured},
        }

    def lines(self, by_kind: Mapping[str, DraftCounts] | None = None) -> list[str]:
        """For people.

        Args:
            by_kind: What came of the guesses on each kind of page.
        """
        counts = self.drafts
        if not counts.num_windows:
            return ["guesses: none was verified"]
        found = [f"tokens a step {counts.tokens_a_step:.2f} in {counts.num_windows} windows"]
        if counts.num_alone != counts.num_accepted:
            found[0] += f", without the selector at least {counts.tokens_alone:.2f}"
        for kind, own in sorted((by_kind or {}).items()):
            if own.num_windows:
                found.append(f"  {kind}: {own.tokens_a_step:.2f} in {own.num_windows} windows")
        found.append("accepted by position " + " ".join(f"{chance:.2f}" for chance in counts.survival))
        shares = self.shares()
        if shares:
            found.append("step " + ", ".join(f"{name} {us:.0f} us" for name, us in shares.items()))
        if self.flushes:
            found.append(f"records folded in {self.flush_rate():.0%} of windows")
        speed_up = self.speed_up()
        found.append(
            "speed-up unknown: no step without guesses had as many requests"
            if speed_up is None
            else f"speed-up expected {speed_up.expected:.2f}, measured {speed_up.measured:.2f}"
        )
        return found
