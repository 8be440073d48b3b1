"""Runs one benchmark by name: settings checked, result as JSON, kept where that is asked for.

Knows modules by their table. Does not know what any of them measures.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from ocrquant.bench.registry import BENCHMARKS
from ocrquant.bench.report import BenchSettings, Report, write_result
from ocrquant.bench.timing import MIN_REPEATS
from ocrquant.errors import RecipeError

__all__ = ["RESULTS", "run_benchmark"]

RESULTS = Path(__file__).parent / "results"
"""Results that the project keeps."""


def run_benchmark(
    name: str,
    assignments: Sequence[str] = (),
    *,
    repeats: int | None = None,
    out: Path | None = None,
    keep: bool = False,
    as_json: bool = False,
) -> dict[str, Any]:
    """Runs a benchmark and prints its result last: as JSON, or as a table where it has one.

    Args:
        name: A key of ``BENCHMARKS``.
        assignments: ``KEY=VALUE`` for its settings; values are YAML.
        repeats: Of each arm; None for 12. Fewer are run and marked as too few.
        out: File for the result.
        keep: Write the result to `RESULTS` as well, by name and date.
        as_json: Print JSON even where there is a table.

    Raises:
        RecipeError: There is no such benchmark or setting, or a value is out of range.
    """
    if name not in BENCHMARKS:
        expected = f"one of {', '.join(BENCHMARKS)}"
        raise RecipeError("benchmark", expected=expected, given=name, fix="correct the name")
    entry = BENCHMARKS[name]
    if repeats is not None and not entry.repeated:
        fix = "leave the option out"
        raise RecipeError("--repeats", expected=f"none: {name} repeats nothing", given=repeats, fix=fix)
    if repeats is not None and repeats < 1:
        raise RecipeError("--repeats", expected="at least 1", given=repeats, fix="correct the number")
    module = import_module(entry.module)
    report: Report = module.run(read_settings(module.Settings, assignments), repeats or MIN_REPEATS)
    data = report.as_json()
    if out is not None:
        write_result(data, out)
    if keep:
        write_result(data, RESULTS / f"{name}-{data['machine']['date']}.json")
    print(json.dumps(data, indent=1) if as_json or not entry.has_table else module.render(data))
    return data


def read_settings(kind: type[BenchSettings], assignments: Sequence[str]) -> BenchSettings:
    """Settings of a benchmark from ``KEY=VALUE``.

    Raises:
        RecipeError: An unknown key, or a value that does not fit; names it with what is known.
    """
    values = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals:
            fix = "write for example crops=64"
            raise RecipeError(f"--set {assignment}", expected="KEY=VALUE", given="another form", fix=fix)
        try:
            values[key.strip()] = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise RecipeError(f"--set {assignment}", expected="a YAML value", given=error) from error
    try:
        return kind(**values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        known = ", ".join(f"{name}={field.default}" for name, field in kind.model_fields.items())
        is_unknown = first["type"] == "extra_forbidden"
        raise RecipeError(
            f"--set {'.'.join(map(str, first['loc']))}",
            expected=f"one of {known}" if is_unknown else first["msg"],
            given="an unknown setting" if is_unknown else repr(first["input"]),
            fix="correct the setting",
        ) from error
