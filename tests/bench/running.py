"""Runs benchmarks with tiny sizes."""

from __future__ import annotations

import json

from ocrquant.bench.run import run_benchmark


def result_of(capsys, name, *assignments, repeats=1):
    """The JSON that a benchmark prints last."""
    run_benchmark(name, assignments, repeats=repeats)
    printed = capsys.readouterr().out
    return json.loads(printed[printed.index("{\n") :])


def is_estimate(value):
    """Whether a number comes with its interval."""
    return (
        set(value) == {"median", "low", "high", "repeats"}
        and value["low"] <= value["median"] <= value["high"]
    )
