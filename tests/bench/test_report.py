"""Verdicts on goals, and numbers as JSON."""

import json

import pytest

from ocrquant.bench.report import BenchSettings, Goal, Report
from ocrquant.bench.timing import Estimate


def estimate(median, low, high, repeats=12):
    return Estimate(median, low, high, repeats)


@pytest.mark.parametrize(
    ("measured", "verdict", "whole"),
    [
        (estimate(3.0, 2.5, 3.5), "reached", True),
        (estimate(2.0, 1.9, 3.5), "reached", False),
        (estimate(1.9, 1.5, 2.5), "missed", False),
        (estimate(1.0, 0.5, 1.5), "missed", True),
        (estimate(3.0, 2.5, 3.5, 11), "too few repeats: 11 of 12", True),
        (2.0, "reached", True),
        (1.0, "missed", True),
    ],
)
def test_goals_are_judged_by_the_median(measured, verdict, whole):
    judged = Goal("speed-up", measured, at_least=2.0).as_json()
    assert (judged["verdict"], judged["whole_interval"]) == (verdict, whole)
    assert judged["at_least"] == 2.0
    assert "at_most" not in judged


def test_ceilings_are_judged_too():
    assert Goal("growth", 0.04, at_most=0.05).as_json()["verdict"] == "reached"
    assert Goal("growth", 0.06, at_most=0.05).as_json()["verdict"] == "missed"


def test_a_report_is_plain_data():
    report = Report("some", BenchSettings(), 3, {"a": {1: (estimate(1 / 3, 0.0, 1.0),)}}, notes=["how"])
    data = json.loads(json.dumps(report.as_json()))
    assert data["results"]["a"]["1"][0] == {"median": 0.333333, "low": 0.0, "high": 1.0, "repeats": 12}
    assert data["repeats_note"] == "too few: 3 of at least 12"
    assert data["notes"] == ["how"]
    assert data["machine"]["processor"]
    assert Report("some", BenchSettings(), None).as_json()["repeats_note"] == ""
