"""The file of a run on a GPU: what it holds, what it refuses, how it is read."""

import json

import pytest
from pydantic import ValidationError

from ocrquant.bench.gpu.result import GpuResult, Line, Machine, not_measured
from ocrquant.bench.timing import Estimate
from ocrquant.errors import ArtifactError, OutputError

MACHINE = Machine(
    device="NVIDIA H200",
    arch="sm_90a",
    memory_bytes=1 << 37,
    driver="580.1",
    cuda="13.0",
    torch="2.13.0",
    date="2026-11-30",
    commit="abc",
)


def result(*lines):
    return GpuResult(machine=MACHINE, seconds=1.5, lines=list(lines) or [not_measured("a", "b", "c")])


def test_a_line_has_a_value_with_its_interval_and_verdict():
    line = Line.of("bandwidth", "share", Estimate(0.85, 0.8, 0.9, 12), at_least=0.8, gain=1.5, note="quick")
    assert (line.value, line.low, line.high, line.repeats, line.verdict) == (0.85, 0.8, 0.9, 12, "reached")
    assert line.render() == (
        "bandwidth: share: 0.85 (0.8 to 0.9, 12 repeats), 1.50 x; at least 0.8: reached; quick"
    )
    assert Line.of("a", "b", 0.7, at_least=0.8).verdict == "missed"
    assert Line.of("a", "b", 3, "us").render() == "a: b: 3 us"


def test_what_was_not_measured_says_why():
    line = not_measured("sanitizer", "memcheck", "not\n installed")
    assert (line.value, line.not_measured) == (None, "not installed")
    assert line.render() == "sanitizer: memcheck: not measured, not installed"
    assert "nan" in Line.of("a", "b", float("nan"), "us").not_measured
    assert not_measured("a", "b", "").not_measured


@pytest.mark.parametrize(
    "values",
    [
        {},  # neither a value nor a reason
        {"value": 1.0, "not_measured": "both"},
        {"value": 1.0, "at_least": 2.0, "verdict": "reached"},
        {"value": 1.0, "at_least": 2.0},  # a goal without its verdict
        {"value": 1.0, "verdict": "reached"},
        {"value": float("inf")},
        {"value": 1.0, "color": "red"},
    ],
)
def test_lines_that_contradict_themselves_are_refused(values):
    with pytest.raises(ValidationError):
        Line(section="a", what="b", **values)


def test_the_file_is_named_by_device_and_day_and_read_back(tmp_path):
    written = result(Line.of("a", "b", 1.0, "us"), not_measured("c", "d", "no GPU"))
    path = written.write(tmp_path / "results")
    assert path.name == "nvidia-h200-2026-11-30.json"
    assert GpuResult.load(path) == written
    data = json.loads(path.read_text())
    assert data["machine"]["commit"] == "abc"
    assert data["lines"][1] == {
        "section": "c",
        "what": "d",
        "unit": "",
        "verdict": "",
        "note": "",
        "not_measured": "no GPU",
    }
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError):
        result().write(tmp_path / "file")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema_version": 2}, "schema_version"),
        ({"lines": []}, "lines"),
        ({"machine": {}}, "machine"),
        ({"more": 1}, "more"),
    ],
)
def test_another_schema_is_refused(tmp_path, change, words):
    path = tmp_path / "result.json"
    path.write_text(json.dumps(result().model_dump(mode="json") | change))
    with pytest.raises(ArtifactError, match=words):
        GpuResult.load(path)
    path.write_text("[")
    with pytest.raises(ArtifactError, match="make gpu"):
        GpuResult.load(path)


def test_results_that_the_project_keeps_are_of_this_schema():
    from ocrquant.bench.gpu import RESULTS

    for path in RESULTS.glob("*.json"):
        if json.loads(path.read_text()).get("benchmark") == "gpu":
            assert GpuResult.load(path).file_name == path.name
