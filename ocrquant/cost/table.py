"""Measured times of products, as ``ocrquant bench cost-table`` writes them: one machine, one date.

Knows the file. Between two numbers of rows that were measured a time lies on the line between them; beyond
them nothing is guessed, and neither is the time of a shape that was not measured.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ocrquant.errors import ArtifactError, RecipeError, dotted_key
from ocrquant.formats import Precision

__all__ = ["BENCHMARK", "CostEntry", "CostTable"]

BENCHMARK = "cost-table"
"""Name of the benchmark in the file's head."""

_FIX = "measure it again: ocrquant bench cost-table --out FILE"
_MICROSECONDS = 1e6

Key = tuple[int, int, Precision]


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class CostEntry(_Closed):
    """One product.

    Attributes:
        out_features: Rows of the weight.
        in_features: Columns of the weight.
        precision: Its format.
        rows: Rows that were multiplied by it.
        us: Median time in microseconds.
        low_us: Lower end of the 95 % interval of the median.
        high_us: Upper end.
        repeats: How often it was measured.
    """

    out_features: int = Field(gt=0)
    in_features: int = Field(gt=0)
    precision: Precision
    rows: int = Field(gt=0)
    us: float = Field(gt=0)
    low_us: float = Field(gt=0)
    high_us: float = Field(gt=0)
    repeats: int = Field(gt=0)


class CostTable(_Closed):
    """All products that were measured on a machine.

    Attributes:
        machine: Processor or GPU, in words.
        date: Day of the measurement.
        read_bytes_per_s: Memory bandwidth, measured in the same minutes.
        products: One entry a shape, format and number of rows.
    """

    machine: str
    date: str
    read_bytes_per_s: float = Field(gt=0)
    products: list[CostEntry] = Field(min_length=1)

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Reads the file that the benchmark wrote.

        Raises:
            ArtifactError: It is missing, or holds something else.
        """
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ArtifactError(path, expected="a cost table", given=error, fix=_FIX) from error
        if not isinstance(data, dict) or data.get("benchmark") != BENCHMARK:
            raise ArtifactError(path, expected="a cost table", given="another file", fix=_FIX)
        return cls.of_report(data, path)

    @classmethod
    def of_report(cls, data: Mapping[str, Any], thing: object) -> Self:
        """The table in the result of the benchmark.

        Args:
            data: The result as plain data.
            thing: What to call it in an error.

        Raises:
            ArtifactError: A key is missing or malformed.
        """
        try:
            return cls(**data["results"])
        except KeyError as error:
            raise ArtifactError(thing, expected="the key results", given="none", fix=_FIX) from error
        except (TypeError, ValidationError) as error:
            first = (
                error.errors(include_url=False)[0] if isinstance(error, ValidationError) else {"loc": ["?"]}
            )
            place = f"{thing}: results.{dotted_key(first['loc'])}"
            raise ArtifactError(place, expected=first.get("msg", "a table"), fix=_FIX) from error

    @property
    def source(self) -> str:
        """Where a time comes from, in words."""
        return f"measured on {self.machine}, {self.date}"

    @cached_property
    def _times(self) -> dict[Key, dict[int, float]]:
        found: dict[Key, dict[int, float]] = {}
        for entry in self.products:
            key = (entry.out_features, entry.in_features, entry.precision)
            found.setdefault(key, {})[entry.rows] = entry.us
        return found

    def product_us(self, out_features: int, in_features: int, precision: Precision, rows: int) -> float:
        """Time of one product in microseconds; see `Target.product_us`.

        Raises:
            RecipeError: The shape was not measured in that format, or only at fewer or more rows.
        """
        times = self._times.get((out_features, in_features, precision), {})
        below = max((r for r in times if r <= rows), default=None)
        above = min((r for r in times if r >= rows), default=None)
        if below is None or above is None:
            measured = ", ".join(map(str, sorted(times)))
            raise RecipeError(
                "assign.target.table",
                expected=f"times of [{out_features}, {in_features}] in {precision} at {rows} rows",
                given=f"times at {measured} rows" if times else "none",
                fix=f"ocrquant bench cost-table --set model=MODEL --set rows=[{rows}] --out FILE",
            )
        if above == below:
            return times[below]
        return times[below] + (times[above] - times[below]) * (rows - below) / (above - below)

    def read_us(self, num_bytes: int) -> float:
        """Time to read so many bytes in microseconds."""
        return num_bytes / self.read_bytes_per_s * _MICROSECONDS

    def note(self, precision: Precision) -> str:
        """Nothing: what a format needs there is inside the measured time."""
        del precision
        return ""
