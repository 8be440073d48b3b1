"""The file that measuring a GPU leaves: one line a measure, or why it was not measured.

Knows the schema and how it is written. Knows nothing of what is measured.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ocrquant.artifacts.atomic import write_bytes
from ocrquant.bench.timing import Estimate
from ocrquant.errors import ArtifactError, dotted_key

__all__ = ["GpuResult", "Line", "Machine", "not_measured"]

_FIX = "measure it again: make gpu"


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Machine(_Closed):
    """Where and when.

    Attributes:
        device: Name of the GPU.
        arch: As `ocrquant.kernels.matmul.ARCHES` names it.
        memory_bytes: Of the GPU.
        driver: Version of the driver; empty where it cannot be asked.
        cuda: Version that torch was built for.
        torch: Its version.
        date: Day, UTC.
        commit: Of the checkout, with a mark where files differ from it; None outside of one.
    """

    device: str = Field(min_length=1)
    arch: str = Field(pattern=r"^sm_\d+a?$")
    memory_bytes: int = Field(gt=0)
    driver: str
    cuda: str
    torch: str
    date: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}$")
    commit: str | None = None


class Line(_Closed):
    """One measure.

    Attributes:
        section: What it belongs to.
        what: The measure in words.
        unit: Of the value; empty for a plain count or a ratio.
        value: Median, or a count; None where it was not measured.
        low: Lower end of the 95 % interval of the median; None for counts.
        high: Upper end.
        repeats: How often it was measured; None for counts.
        at_least: What it should reach; None where nothing was promised.
        verdict: Whether it does; empty where nothing was promised or measured.
        gain: Times the line that it is compared with; None for none.
        note: What is to be known of it.
        not_measured: Why there is no value; empty where there is one.
    """

    section: str = Field(min_length=1)
    what: str = Field(min_length=1)
    unit: str = ""
    value: float | None = None
    low: float | None = None
    high: float | None = None
    repeats: int | None = Field(default=None, gt=0)
    at_least: float | None = None
    verdict: Literal["", "reached", "missed"] = ""
    gain: float | None = None
    note: str = ""
    not_measured: str = ""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.value is None) != bool(self.not_measured):
            raise ValueError("a line has a value, or a reason why it was not measured")
        if self.value is not None and self.at_least is not None:
            if self.verdict != ("reached" if self.value >= self.at_least else "missed"):
                raise ValueError("the verdict is not that of the value")
        elif self.verdict:
            raise ValueError("a verdict needs a value and a goal")
        return self

    @classmethod
    def of(
        cls,
        section: str,
        what: str,
        measured: Estimate | float,
        unit: str = "",
        *,
        at_least: float | None = None,
        gain: float | None = None,
        note: str = "",
    ) -> Self:
        """A line with a value."""
        estimate = measured if isinstance(measured, Estimate) else None
        value = measured.median if isinstance(measured, Estimate) else float(measured)
        if not math.isfinite(value):
            return cls(section=section, what=what, unit=unit, not_measured=f"the value is {value}", note=note)
        verdict: Literal["", "reached", "missed"] = ""
        if at_least is not None:
            verdict = "reached" if value >= at_least else "missed"
        return cls(
            section=section,
            what=what,
            unit=unit,
            value=value,
            low=None if estimate is None else estimate.low,
            high=None if estimate is None else estimate.high,
            repeats=None if estimate is None else estimate.repeats,
            at_least=at_least,
            verdict=verdict,
            gain=gain,
            note=note,
        )

    def render(self) -> str:
        """For a reader."""
        head = f"{self.section}: {self.what}"
        if self.value is None:
            return f"{head}: not measured, {self.not_measured}"
        text = f"{head}: {self.value:.4g}{' ' if self.unit else ''}{self.unit}"
        if self.low is not None and self.high is not None:
            text += f" ({self.low:.4g} to {self.high:.4g}, {self.repeats} repeats)"
        if self.gain is not None:
            text += f", {self.gain:.2f} x"
        if self.at_least is not None:
            text += f"; at least {self.at_least:.4g}: {self.verdict}"
        return f"{text}; {self.note}" if self.note else text


def not_measured(section: str, what: str, reason: str) -> Line:
    """A line without a value."""
    return Line(section=section, what=what, not_measured=" ".join(reason.split()) or "no reason was given")


class GpuResult(_Closed):
    """Everything of one run.

    Attributes:
        schema_version: Of this file.
        benchmark: Its name.
        machine: Where and when.
        seconds: How long it took.
        lines: One a measure.
    """

    schema_version: Literal[1] = 1
    benchmark: Literal["gpu"] = "gpu"
    machine: Machine
    seconds: float = Field(ge=0)
    lines: list[Line] = Field(min_length=1)

    @property
    def file_name(self) -> str:
        """Named by device and day."""
        device = re.sub(r"[^a-z0-9]+", "-", self.machine.device.lower()).strip("-")
        return f"{device}-{self.machine.date}.json"

    def write(self, folder: Path) -> Path:
        """Writes it whole or not at all.

        Raises:
            OutputError: The folder cannot be written.
        """
        path = folder / self.file_name
        write_bytes(path, (self.model_dump_json(indent=1, exclude_none=True) + "\n").encode())
        return path

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads and checks one.

        Raises:
            ArtifactError: The file is missing, or not of this schema.
        """
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = f"{path}: {dotted_key(first['loc'])}"
            raise ArtifactError(place, expected=first["msg"], fix=_FIX) from error
        except (OSError, ValueError, TypeError) as error:
            raise ArtifactError(path, expected="what make gpu writes", given=error, fix=_FIX) from error
