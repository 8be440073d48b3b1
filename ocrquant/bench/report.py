"""What a benchmark gives: facts of the machine, settings, numbers with intervals, goals and verdicts.

Knows JSON. Does not know what was measured.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from ocrquant.bench.machine import describe_machine
from ocrquant.bench.timing import MIN_REPEATS, Estimate
from ocrquant.errors import OutputError

__all__ = ["BenchSettings", "Goal", "Report"]


class BenchSettings(BaseModel):
    """Base of the settings of a benchmark: unknown keys and values of another kind are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True, slots=True)
class Goal:
    """A number that was promised.

    Attributes:
        what: The measure in words, with its unit.
        measured: With its interval; a plain number for what is counted.
        at_least: What it should reach; None where there is a ceiling instead.
        at_most: What it should not exceed.
    """

    what: str
    measured: Estimate | float
    at_least: float | None = None
    at_most: float | None = None

    def as_json(self) -> dict[str, object]:
        """With a verdict on the median, and whether the whole interval agrees; few repeats judge nothing."""
        measured = self.measured
        values = (
            (measured.median, measured.low, measured.high) if isinstance(measured, Estimate) else (measured,)
        )
        is_met = [self._holds(value) for value in values]
        verdict = "reached" if is_met[0] else "missed"
        if isinstance(measured, Estimate) and measured.repeats < MIN_REPEATS:
            verdict = f"too few repeats: {measured.repeats} of {MIN_REPEATS}"
        bound = {"at_least": self.at_least, "at_most": self.at_most}
        return {
            "what": self.what,
            **{name: value for name, value in bound.items() if value is not None},
            "measured": plain(measured),
            "verdict": verdict,
            "whole_interval": all(value is is_met[0] for value in is_met),
        }

    def _holds(self, value: float) -> bool:
        is_enough = self.at_least is None or value >= self.at_least
        return is_enough and (self.at_most is None or value <= self.at_most)


@dataclass(slots=True)
class Report:
    """The result of a benchmark.

    Attributes:
        benchmark: Its name.
        settings: What it was asked for.
        repeats: Of each arm; None where nothing is repeated.
        results: Numbers by name, nested as the benchmark likes.
        goals: What was promised.
        notes: How things were measured, and what the numbers do not say.
    """

    benchmark: str
    settings: BenchSettings
    repeats: int | None
    results: dict[str, Any] = field(default_factory=dict)
    goals: list[Goal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Everything as plain data."""
        few = self.repeats is not None and self.repeats < MIN_REPEATS
        return {
            "benchmark": self.benchmark,
            "machine": describe_machine(),
            "settings": self.settings.model_dump(mode="json"),
            "repeats": self.repeats,
            "repeats_note": f"too few: {self.repeats} of at least {MIN_REPEATS}" if few else "",
            "results": plain(self.results),
            "goals": [goal.as_json() for goal in self.goals],
            "notes": list(self.notes),
        }


def plain(value: Any) -> Any:
    """Numbers, texts, lists and mappings; estimates with three ends and the count of their repeats."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def write_result(data: Mapping[str, Any], path: Path) -> None:
    """Writes a result as JSON.

    Raises:
        OutputError: The file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise OutputError(path, expected="a file that can be written", given=error.strerror) from error
